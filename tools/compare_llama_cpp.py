#!/usr/bin/env python3
"""Compares Carpool's logits on a GGUF file with llama.cpp's, token by token.

    python3 -m venv venv && venv/bin/pip install numpy xllamacpp     # or llama-cpp-python
    venv/bin/python tools/compare_llama_cpp.py MODEL.gguf --carpool build/release/carpool --text FILE

llama.cpp is called through its C interface, in whatever library has it: --library FILE, or one of the two packages.
Both sides are given the same tokens, in independent windows, and each one's logits go to memory. Reported: the mean and
the largest KL divergence KL(llama.cpp || Carpool) in nats, and how often the likeliest token is the same. Exit code 1
when the limits are exceeded. Where weights are quantised, llama.cpp rounds activations to 8 bits and Carpool's default
does not. To take that out of the comparison, give llama.cpp the same values as floats:

    carpool convert MODEL.gguf FOLDER --type f32 && carpool convert FOLDER FLOATS.gguf    # then --reference FLOATS.gguf
"""
import argparse
import ctypes
import glob
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

PARAMS_BYTES = 1024  # parameter structs are passed by value and grow over time; more bytes than theirs do no harm


class Params(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint32 * (PARAMS_BYTES // 4))]


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)), ("embd", ctypes.c_void_p),
                ("pos", ctypes.POINTER(ctypes.c_int32)), ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
                ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))), ("logits", ctypes.POINTER(ctypes.c_int8))]


def find_library():
    for package, pattern in (("llama_cpp", "lib/libllama*.so*"), ("xllamacpp", "xllamacpp*.so")):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations if spec else []):
            for path in sorted(glob.glob(os.path.join(folder, pattern))):
                return path
    sys.exit("compare_llama_cpp: no llama.cpp library; install xllamacpp or llama-cpp-python, or give --library")


def bind(library):
    """llama.cpp's C interface, silent, with the signatures of what is called here and in peers/llama_cpp_decode.py."""
    lib = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    for name in ("llama_model_default_params", "llama_context_default_params"):
        getattr(lib, name).restype = Params
    pointers = {"llama_model_load_from_file": [ctypes.c_char_p, Params], "llama_init_from_model": [ctypes.c_void_p, Params],
                "llama_model_get_vocab": [ctypes.c_void_p], "llama_get_memory": [ctypes.c_void_p],
                "llama_get_logits_ith": [ctypes.c_void_p, ctypes.c_int32]}
    for name, arguments in pointers.items():
        getattr(lib, name).restype = ctypes.c_void_p
        getattr(lib, name).argtypes = arguments
    lib.llama_free.argtypes = lib.llama_synchronize.argtypes = lib.llama_vocab_n_tokens.argtypes = [ctypes.c_void_p]
    lib.llama_decode.argtypes = [ctypes.c_void_p, Batch]
    lib.llama_memory_clear.argtypes = [ctypes.c_void_p, ctypes.c_bool]
    lib.llama_set_n_threads.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32]
    lib.llama_tokenize.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32),
                                   ctypes.c_int32, ctypes.c_bool, ctypes.c_bool]
    lib.llama_print_system_info.restype = ctypes.c_char_p
    lib.quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    lib.llama_log_set(lib.quiet, None)
    lib.llama_backend_init()
    return lib


def tokenize(lib, vocab, text, special):
    data = text.encode()
    ids = (ctypes.c_int32 * (len(data) + 16))()
    n = lib.llama_tokenize(vocab, data, len(data), ids, len(ids), special, special)
    return list(ids[:n])


class LlamaCpp:
    """One model and one context, emptied between windows."""

    def __init__(self, library, model, window, threads=1):
        self.lib = lib = bind(library)
        self.model = lib.llama_model_load_from_file(os.fsencode(model), lib.llama_model_default_params())
        if not self.model:
            sys.exit(f"compare_llama_cpp: llama.cpp cannot load {model}")
        params = lib.llama_context_default_params()
        for i in range(3):  # n_ctx, n_batch, n_ubatch
            params.bytes[i] = window
        self.context = lib.llama_init_from_model(self.model, params)
        lib.llama_set_n_threads(self.context, threads, threads)
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.vocab_size = lib.llama_vocab_n_tokens(self.vocab)

    def logits(self, tokens):
        n = len(tokens)
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
        sequence = (ctypes.c_int32 * 1)(0)
        batch = Batch(n, (ctypes.c_int32 * n)(*tokens), None, (ctypes.c_int32 * n)(*range(n)),
                      (ctypes.c_int32 * n)(*[1] * n),
                      (ctypes.POINTER(ctypes.c_int32) * n)(*[ctypes.cast(sequence, ctypes.POINTER(ctypes.c_int32))] * n),
                      (ctypes.c_int8 * n)(*[1] * n))
        if self.lib.llama_decode(self.context, batch) != 0:
            sys.exit("compare_llama_cpp: llama_decode failed")
        rows = [np.ctypeslib.as_array(ctypes.cast(self.lib.llama_get_logits_ith(self.context, i),
                                                  ctypes.POINTER(ctypes.c_float)), (self.vocab_size,)).copy()
                for i in range(n)]
        return np.stack(rows)


def carpool_logits(program, model, windows, extra):
    """The rows of every window: a JSON list of token lists in, float32 rows out."""
    with tempfile.TemporaryDirectory() as folder:
        tokens, out = os.path.join(folder, "tokens.json"), os.path.join(folder, "logits.f32")
        with open(tokens, "w", encoding="utf-8") as f:
            json.dump(windows, f)
        run = subprocess.run([program, "logits", model, "--tokens", tokens, "--out", out, *extra], check=False)
        if run.returncode != 0:
            sys.exit(f"compare_llama_cpp: {program} logits failed")
        return np.fromfile(out, dtype=np.float32)


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--reference", help="GGUF file for llama.cpp; default: the same")
    parser.add_argument("--text", required=True, help="UTF-8 text to take tokens from")
    parser.add_argument("--carpool", default="build/release/carpool")
    parser.add_argument("--library", help="shared library with llama.cpp's C interface")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--window", type=int, default=250)
    parser.add_argument("--threads", type=int, default=1, help="of llama.cpp; Carpool's go after --")
    parser.add_argument("--max-kl", type=float, default=3e-3)
    parser.add_argument("--min-agreement", type=float, default=0.98)
    parser.add_argument("flags", nargs="*", help="more flags for carpool, after --")
    args = parser.parse_args()

    llama = LlamaCpp(args.library or find_library(), args.reference or args.model, args.window, args.threads)
    with open(args.text, encoding="utf-8") as f:
        ids = tokenize(llama.lib, llama.vocab, f.read()[:args.tokens * 16], False)[:args.tokens]
    windows = [ids[i:i + args.window] for i in range(0, len(ids), args.window)]
    ours = carpool_logits(args.carpool, args.model, windows, args.flags).reshape(len(ids), -1)
    kl, same, row = [], 0, 0
    for window in windows:
        theirs = llama.logits(window)
        mine = ours[row:row + len(window), :theirs.shape[1]]
        row += len(window)
        p, q = log_softmax(theirs), log_softmax(mine)
        kl.append((np.exp(p) * (p - q)).sum(axis=1))
        same += int((theirs.argmax(axis=1) == mine.argmax(axis=1)).sum())
    kl = np.concatenate(kl)
    report = {"model": os.path.basename(args.model), "tokens": len(ids), "mean_kl": float(kl.mean()),
              "p99_kl": float(np.quantile(kl, 0.99)), "max_kl": float(kl.max()), "top1_agreement": same / len(ids)}
    print(json.dumps(report, indent=1))
    return 0 if report["mean_kl"] <= args.max_kl and report["top1_agreement"] >= args.min_agreement else 1


if __name__ == "__main__":
    sys.exit(main())
