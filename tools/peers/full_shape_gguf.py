#!/usr/bin/env python3
"""Writes a GGUF file of a real model's shape with random weights: full width, as many layers as fit a size.

    python3 -m venv venv && venv/bin/pip install numpy
    venv/bin/python tools/peers/full_shape_gguf.py qwen3-30b-a3b qwen.gguf --gigabytes 8
    venv/bin/python tools/peers/full_shape_gguf.py glm-4.5-air glm.gguf --gigabytes 8 --text glm.txt

Matrices are Q4_K, the head is Q6_K, norms, biases and routers are F32. Q4_K needs inputs in multiples of 256, which
GLM's `down` matrices (1408 and 10944 inputs) are not: they get --fallback. Weights have the variance that keeps
activations near one; every block is valid and the bytes differ from tensor to tensor, though they are cut from one pool.
The vocabulary has the real size and is made here: bytes, letter pairs and triples, and all numbers of up to three digits.
--text writes random numbers of three digits, which are one token each.
"""
import argparse
import struct

import numpy as np

# name: (type id, inputs per block, bytes per block)
TYPES = {"f32": (0, 1, 4), "q4_0": (2, 32, 18), "q5_0": (6, 32, 22), "q4_k": (12, 256, 144), "q6_k": (14, 256, 210)}
POOL_BLOCKS = 1 << 16
ALIGNMENT = 32

SHAPES = {
    "qwen3-30b-a3b": {
        "arch": "qwen3moe", "layers": 48, "dense": 0, "hidden": 2048, "heads": 32, "kv_heads": 4, "head_dim": 128,
        "experts": 128, "top": 8, "width": 768, "dense_width": 6144, "shared": 0, "vocab": 151936, "context": 40960,
        "eps": 1e-6, "rope": 128, "qk_norm": True, "bias": False, "sigmoid": False, "ffn_norm": "ffn_norm"},
    "glm-4.5-air": {
        "arch": "glm4moe", "layers": 46, "dense": 1, "hidden": 4096, "heads": 96, "kv_heads": 8, "head_dim": 128,
        "experts": 128, "top": 8, "width": 1408, "dense_width": 10944, "shared": 1, "vocab": 151552, "context": 131072,
        "eps": 1e-5, "rope": 64, "qk_norm": False, "bias": True, "sigmoid": True, "ffn_norm": "post_attention_norm"},
}


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(v):
    """One metadata value with its type in front."""
    if isinstance(v, bool):
        return struct.pack("<IB", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + string(v)
    if isinstance(v[0], int):
        return struct.pack("<IIQ", 9, 5, len(v)) + struct.pack(f"<{len(v)}i", *v)
    return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(string(s) for s in v)


def alphabet():
    """The byte-level alphabet: a printable character per byte."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    chars = {b: chr(b) for b in plain}
    for i, b in enumerate(b for b in range(256) if b not in chars):
        chars[b] = chr(256 + i)
    return [chars[b] for b in range(256)]


def vocabulary(size):
    """(tokens, types, merges); the last token ends a text."""
    tokens, merges = alphabet(), []

    def add(symbols):
        for a in symbols:
            for b in symbols:
                tokens.append(a + b)
                merges.append(f"{a} {b}")
        for a in symbols:
            for b in symbols:
                for c in symbols:
                    if len(tokens) >= size - 1:
                        return
                    tokens.append(a + b + c)
                    # Whichever pair is joined first, the third one follows.
                    merges.extend([f"{a + b} {c}", f"{a} {b + c}"])

    add("0123456789")
    add("".join(chr(c) for c in [*range(97, 123), *range(65, 91)]))
    tokens += [f"<filler{i}>" for i in range(len(tokens), size - 1)] + ["<|endoftext|>"]
    return tokens, [1] * (size - 1) + [3], merges


def metadata(shape, layers, name):
    arch = shape["arch"]
    tokens, types, merges = vocabulary(shape["vocab"])
    fields = {
        "general.architecture": arch, "general.name": f"{name}, random weights", "general.alignment": ALIGNMENT,
        "general.quantization_version": 2, "general.file_type": 15,
        f"{arch}.block_count": layers, f"{arch}.context_length": shape["context"],
        f"{arch}.embedding_length": shape["hidden"], f"{arch}.feed_forward_length": shape["dense_width"],
        f"{arch}.attention.head_count": shape["heads"], f"{arch}.attention.head_count_kv": shape["kv_heads"],
        f"{arch}.attention.key_length": shape["head_dim"], f"{arch}.attention.value_length": shape["head_dim"],
        f"{arch}.attention.layer_norm_rms_epsilon": shape["eps"], f"{arch}.rope.freq_base": 1e6,
        f"{arch}.rope.dimension_count": shape["rope"], f"{arch}.expert_count": shape["experts"],
        f"{arch}.expert_used_count": shape["top"], f"{arch}.expert_feed_forward_length": shape["width"],
    }
    if shape["sigmoid"]:
        fields |= {f"{arch}.expert_shared_count": shape["shared"], f"{arch}.leading_dense_block_count": shape["dense"],
                   f"{arch}.expert_gating_func": 2, f"{arch}.expert_weights_scale": 1.0,
                   f"{arch}.expert_weights_norm": True, f"{arch}.nextn_predict_layers": 0}
    return fields | {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "glm4", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types, "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": shape["vocab"] - 1, "tokenizer.ggml.padding_token_id": shape["vocab"] - 1,
        "tokenizer.ggml.add_bos_token": False}


def tensors(shape, layers, fallback):
    """[(name, dims with the inputs first, type, what to fill it with)]."""
    out = []

    def matrix(name, inputs, *rest, kind="q4_k"):
        kind = kind if inputs % TYPES[kind][1] == 0 else fallback
        out.append((name + ".weight", (inputs, *rest), kind, "weights"))

    def vector(name, n, fill="ones"):
        out.append((name, (n,), "f32", fill))

    h, heads, kv = shape["hidden"], shape["heads"] * shape["head_dim"], shape["kv_heads"] * shape["head_dim"]
    out.append(("token_embd.weight", (h, shape["vocab"]), "q4_k", "embedding"))
    vector("output_norm.weight", h)
    matrix("output", h, shape["vocab"], kind="q6_k")
    for i in range(layers):
        at = f"blk.{i}."
        vector(at + "attn_norm.weight", h)
        for part, rows in (("q", heads), ("k", kv), ("v", kv)):
            matrix(f"{at}attn_{part}", h, rows)
            if shape["bias"]:
                vector(f"{at}attn_{part}.bias", rows, "small")
        if shape["qk_norm"]:
            vector(at + "attn_q_norm.weight", shape["head_dim"])
            vector(at + "attn_k_norm.weight", shape["head_dim"])
        matrix(at + "attn_output", heads, h)
        vector(f"{at}{shape['ffn_norm']}.weight", h)
        if i < shape["dense"]:
            gate_up_down(matrix, at, "", h, shape["dense_width"])
            continue
        out.append((at + "ffn_gate_inp.weight", (h, shape["experts"]), "f32", "weights"))
        if shape["sigmoid"]:
            vector(at + "exp_probs_b.bias", shape["experts"], "small")
        gate_up_down(matrix, at, "_exps", h, shape["width"], shape["experts"])
        if shape["shared"]:
            gate_up_down(matrix, at, "_shexp", h, shape["width"] * shape["shared"])
    return out


def gate_up_down(matrix, at, suffix, hidden, width, *experts):
    matrix(f"{at}ffn_gate{suffix}", hidden, width, *experts)
    matrix(f"{at}ffn_up{suffix}", hidden, width, *experts)
    matrix(f"{at}ffn_down{suffix}", width, hidden, *experts)


def num_bytes(dims, kind):
    _, inputs, size = TYPES[kind]
    return int(np.prod(dims)) // inputs * size


def blocks(rng, kind, deviation):
    """A pool of random blocks whose values have mean zero (Q4_0, Q5_0: nearly) and this deviation."""
    n = POOL_BLOCKS
    size = TYPES[kind][2]
    out = rng.integers(0, 256, (n, size), dtype=np.uint8)

    def half(column, x):
        out[:, column:column + 2] = x.astype("<f2").view(np.uint8).reshape(n, 2)

    spread = rng.uniform(0.8, 1.2, n) * deviation
    if kind == "q4_k":  # codes 0..15: mean 7.5, deviation 4.61; scales as large as minima, 32..63
        s = rng.integers(32, 64, (n, 8), dtype=np.uint8)
        half(0, spread / (4.61 * 48))
        half(2, spread * 7.5 / (4.61 * 48))
        high = s[:, 4:] >> 4 << 6
        out[:, 4:8] = out[:, 8:12] = s[:, :4] | high
        out[:, 12:16] = (s[:, 4:] & 15) * 17
    elif kind == "q6_k":  # codes -32..31
        out[:, 192:208] = rng.integers(32, 64, (n, 16), dtype=np.uint8)
        half(208, spread / (18.5 * 48))
    else:
        half(0, spread / (4.61 if kind == "q4_0" else 9.23))
    return out


class Filler:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.pools = {}

    def write(self, f, dims, kind, fill):
        n = int(np.prod(dims))
        if kind == "f32":
            data = np.ones(n) if fill == "ones" else self.rng.standard_normal(n)
            data *= {"ones": 1.0, "small": 0.02, "weights": dims[0] ** -0.5}[fill]
            f.write(data.astype("<f4").tobytes())
            return
        deviation = 1.0 if fill == "embedding" else dims[0] ** -0.5
        if (kind, deviation) not in self.pools:
            self.pools[kind, deviation] = blocks(self.rng, kind, deviation)
        pool, left = self.pools[kind, deviation], n // TYPES[kind][1]
        while left > 0:
            first = int(self.rng.integers(0, POOL_BLOCKS // 2))
            count = min(left, int(self.rng.integers(POOL_BLOCKS // 4, POOL_BLOCKS // 2)))
            f.write(pool[first:first + count].tobytes())
            left -= count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("file")
    parser.add_argument("--gigabytes", type=float, default=8.0, help="of 10^9 bytes; at most the whole model")
    parser.add_argument("--fallback", choices=["q4_0", "q5_0"], default="q4_0", help="where inputs are no multiple of 256")
    parser.add_argument("--text", help="also write a text of 20,000 tokens to this file")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    shape = SHAPES[args.shape]
    padded = lambda t: -(-num_bytes(t[1], t[2]) // ALIGNMENT) * ALIGNMENT
    layers = shape["layers"]
    while layers > 1 and sum(map(padded, tensors(shape, layers, args.fallback))) > args.gigabytes * 1e9:
        layers -= 1
    listed = tensors(shape, layers, args.fallback)
    fields = metadata(shape, layers, args.shape)
    header = struct.pack("<IIQQ", 0x46554747, 3, len(listed), len(fields))
    header += b"".join(string(k) + value(v) for k, v in fields.items())
    offset = 0
    for t in listed:
        name, dims, kind, _ = t
        header += string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, TYPES[kind][0], offset)
        offset += padded(t)
    filler = Filler(args.seed)
    with open(args.file, "wb") as f:
        f.write(header)
        for t in listed:
            f.write(bytes(-f.tell() % ALIGNMENT))
            filler.write(f, *t[1:])
        f.write(bytes(-f.tell() % ALIGNMENT))
        print(f"{args.file}: {args.shape}, {layers} of {shape['layers']} layers, {f.tell()} bytes")
    if args.text:
        numbers = np.random.default_rng(args.seed + 1).integers(0, 1000, 20000)
        with open(args.text, "w", encoding="utf-8") as f:
            f.write("".join(f"{n:03}" for n in numbers))


if __name__ == "__main__":
    main()
