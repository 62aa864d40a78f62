#!/usr/bin/env python3
"""Decode and prefill speed of llama.cpp on a GGUF file beside `carpool bench decode`, in alternating rounds.

    python3 -m venv venv && venv/bin/pip install numpy xllamacpp
    venv/bin/python tools/peers/llama_cpp_decode.py FILE.gguf --text FILE.txt --carpool build/release/carpool

llama.cpp is called through its C interface, in xllamacpp's or llama-cpp-python's library or in --library. It stays in
memory; Carpool is started anew every round. Both are given the same tokens of the same text: B sequences that start at
B places of it, --context tokens each, then --steps steps of one token per sequence (llama_decode with B tokens, logits for
all). A step's time is the median over the steps of a round; reported are the median and the range over the rounds.
--prefill N: one sequence of N tokens, logits of the last one only, best of --prefill-runs in every round.

The offsets of the parameter structs are those of llama.cpp b11549 (xllamacpp 2026.10.11549) and were the same in the
releases around it; the defaults are read first, and a surprise in them ends the program.
"""
import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from compare_llama_cpp import Batch, bind, find_library, tokenize  # noqa: E402

# 32-bit words of llama_context_params
N_CTX, N_BATCH, N_UBATCH, N_SEQ_MAX = 0, 1, 2, 3
# of llama_model_params: load_mode is -1 (automatic); a byte further on says whether weights are repacked
LOAD_MODE, EXTRA_BUFTS_BYTE = 6, 18 * 4 + 2


class LlamaCpp:
    def __init__(self, library, model, threads, repack):
        self.lib = lib = bind(library)
        self.threads = threads
        params = lib.llama_model_default_params()
        raw = ctypes.cast(ctypes.byref(params), ctypes.POINTER(ctypes.c_uint8))
        if params.bytes[LOAD_MODE] != 0xFFFFFFFF or raw[EXTRA_BUFTS_BYTE] != 1:
            sys.exit("llama_cpp_decode: another llama_model_params than this program knows")
        raw[EXTRA_BUFTS_BYTE] = int(repack)
        start = time.monotonic()
        self.model = lib.llama_model_load_from_file(os.fsencode(model), params)
        if not self.model:
            sys.exit(f"llama_cpp_decode: llama.cpp cannot load {model}")
        self.load_s = time.monotonic() - start
        self.vocab = lib.llama_model_get_vocab(self.model)

    def open(self, sequences, tokens):
        """A context for so many sequences of so many tokens; flash attention and the rest as llama.cpp chooses."""
        params = self.lib.llama_context_default_params()
        if list(params.bytes[:4]) != [512, 2048, 512, 1]:
            sys.exit("llama_cpp_decode: another llama_context_params than this program knows")
        tokens = -(-tokens // 256) * 256
        params.bytes[N_CTX], params.bytes[N_SEQ_MAX] = sequences * tokens, sequences
        params.bytes[N_BATCH] = params.bytes[N_UBATCH] = 512
        self.context = self.lib.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit("llama_cpp_decode: no context")
        self.lib.llama_set_n_threads(self.context, self.threads, self.threads)

    def close(self):
        self.lib.llama_free(self.context)

    def clear(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def decode(self, tokens, positions, sequences, logits):
        n = len(tokens)
        ids = [(ctypes.c_int32 * 1)(s) for s in sequences]
        pointer = ctypes.POINTER(ctypes.c_int32)
        batch = Batch(n, (ctypes.c_int32 * n)(*tokens), None, (ctypes.c_int32 * n)(*positions), (ctypes.c_int32 * n)(*[1] * n),
                      (pointer * n)(*[ctypes.cast(i, pointer) for i in ids]), (ctypes.c_int8 * n)(*logits))
        start = time.monotonic()
        if self.lib.llama_decode(self.context, batch) != 0:
            sys.exit("llama_cpp_decode: llama_decode failed")
        self.lib.llama_synchronize(self.context)
        return time.monotonic() - start

    def steps_us(self, ids, batch, context, steps):
        """Median step; sequence b starts at its own place of the text, as in `carpool bench decode`."""
        stride = max(len(ids) // batch, 1)
        token = lambda b, i: ids[(b * stride + i) % len(ids)]
        self.open(batch, context + steps)
        together = max(512 // context, 1)  # sequences whose contexts go in one call
        for first in range(0, batch, together):
            rows = [(b, i) for b in range(first, min(first + together, batch)) for i in range(context)]
            self.decode([token(b, i) for b, i in rows], [i for _, i in rows], [b for b, _ in rows], [0] * len(rows))
        times = [self.decode([token(b, context + s) for b in range(batch)], [context + s] * batch, range(batch), [1] * batch)
                 for s in range(steps)]
        self.close()
        return statistics.median(times) * 1e6

    def prefill_us(self, ids, n, runs):
        self.open(1, n)
        times = []
        for _ in range(runs):
            self.clear()
            times.append(self.decode(ids[:n], range(n), [0] * n, [0] * (n - 1) + [1]))
        self.close()
        return min(times) * 1e6


def carpool(args, activations):
    command = [args.carpool, "bench", "decode", args.model, "--text", args.text, "--batch", args.batch, "--routing",
               args.routing, "--context", str(args.context), "--steps", str(args.steps), "--threads", str(args.threads),
               "--activations", activations, "--prefill", str(args.prefill), "--prefill-runs", str(args.prefill_runs),
               "--membw-megabytes", "256", "--json"]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"llama_cpp_decode: {run.stderr}")
    report = json.loads(run.stdout)
    rows = {(f"carpool {activations}, {r['routing']}", r["batch"]): r["us_median"] for r in report["rows"]}
    if args.prefill:
        for r in report["prefill"]:
            rows[f"carpool {activations}, {r['routing']}", "prefill"] = r["us_best"]
    return rows, report["membw_gbytes_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--text", required=True)
    parser.add_argument("--carpool", default="build/release/carpool")
    parser.add_argument("--library", help="shared library with llama.cpp's C interface")
    parser.add_argument("--no-repack", action="store_true", help="llama.cpp keeps the weights as they are in the file")
    parser.add_argument("--batch", default="1,4,8,16,32")
    parser.add_argument("--routing", default="vanilla,oea:k0=3")
    parser.add_argument("--activations", default="q8,f32", help="of Carpool; a run each per round")
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--prefill-runs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="also write all figures to this file")
    args = parser.parse_args()

    llama = LlamaCpp(args.library or find_library(), args.model, args.threads, not args.no_repack)
    print(llama.lib.llama_print_system_info().decode(), f"| loaded in {llama.load_s:.1f} s", flush=True)
    with open(args.text, encoding="utf-8") as f:
        ids = tokenize(llama.lib, llama.vocab, f.read(), False)
    batches = [int(b) for b in args.batch.split(",")]

    def theirs():
        rows = {("llama.cpp", b): llama.steps_us(ids, b, args.context, args.steps) for b in batches}
        if args.prefill:
            rows["llama.cpp", "prefill"] = llama.prefill_us(ids, args.prefill, args.prefill_runs)
        return rows

    figures, bandwidth = {}, []
    for i in range(args.rounds):
        results = [theirs()]
        print("llama.cpp: " + ", ".join(f"{what} {us / 1e3:.1f} ms" for (_, what), us in results[0].items()), flush=True)
        for activations in filter(None, args.activations.split(",")):
            rows, rate = carpool(args, activations)
            results.append(rows)
            bandwidth.append(rate)
        for rows in results:
            for key, us in rows.items():
                figures.setdefault(key, []).append(us)
        print(f"round {i + 1} of {args.rounds}: " + ", ".join(
            f"{who} {what} {us[-1] / 1e3:.1f}" for (who, what), us in figures.items()), flush=True)

    print(f"{'':30} {'what':>8} {'ms':>9} {'least':>9} {'most':>9} {'tokens/s':>9} {'x llama.cpp':>11}")
    for (who, what), us in figures.items():
        median = statistics.median(us)
        base = figures["llama.cpp", what]
        ratios = [a / b for a, b in zip(base, us)]  # of the same round
        tokens = args.prefill if what == "prefill" else what
        print(f"{who:30} {what:>8} {median / 1e3:9.1f} {min(us) / 1e3:9.1f} {max(us) / 1e3:9.1f} {tokens / median * 1e6:9.1f}"
              f" {statistics.median(ratios):11.2f}")
    if bandwidth:
        print(f"memory read {min(bandwidth):.1f} to {max(bandwidth):.1f} GB/s")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump([{"engine": who, "what": what, "us": us} for (who, what), us in figures.items()], f, indent=1)


if __name__ == "__main__":
    main()
