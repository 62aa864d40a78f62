#!/usr/bin/env python3
"""The experts of one MoE layer in a PyTorch loop, beside `carpool bench moe`, in alternating runs.

    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install torch --index-url https://download.pytorch.org/whl/cpu
    /tmp/peer/bin/python tools/peers/torch_experts.py --carpool build/release/carpool --experts 64 --batch 1,4,16

What is timed in PyTorch: for every distinct expert, the rows that chose it through gate, up, silu, product and down, added
to the output by weight; weights bf16 (PyTorch's own CPU matmul), or int4 groups of 32 with --int4 (its
_weight_int4pack_mm_for_cpu, where the installed version has it). Router and shared expert are left out for PyTorch and are
part of Carpool's time. Assignments: the same distribution for both, independent normal logits per row; `oea:k0=3` is made
here as Carpool makes it (top 3 of every row form the union, each row keeps its best 8 inside). Experts are as many as
--experts because bf16 weights of all 256 would need 19 GB; rows per expert rise accordingly for both.
"""
import argparse
import json
import statistics
import subprocess
import time

import torch


def assignments(batch, experts, k0, generator):
    """[(expert, [rows])] of one step; k0 = 8 is vanilla."""
    logits = torch.randn(batch, experts, generator=generator)
    union = torch.zeros(experts, dtype=torch.bool)
    union[logits.topk(k0).indices.flatten()] = True
    chosen = logits.masked_fill(~union, float("-inf")).topk(min(8, int(union.sum()))).indices
    rows = {}
    for row, ids in enumerate(chosen.tolist()):
        for e in ids:
            rows.setdefault(e, []).append(row)
    return sorted(rows.items())


class Bf16:
    def __init__(self, rows, cols):
        self.w = (torch.randn(rows, cols) / cols**0.5).to(torch.bfloat16)

    def __call__(self, x):
        return x @ self.w.T


class Int4:
    GROUP = 32

    def __init__(self, rows, cols):
        codes = torch.randint(0, 16, (rows, cols), dtype=torch.int32)
        self.w = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        scales = torch.full((cols // self.GROUP, rows, 2), 0.01, dtype=torch.bfloat16)
        self.scales = scales.contiguous()

    def __call__(self, x):
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.w, self.GROUP, self.scales)


def step(bank, x, plan):
    y = torch.zeros_like(x)
    for expert, rows in plan:
        gate, up, down = bank[expert]
        part = x[rows]
        y[rows] += 0.125 * down(torch.nn.functional.silu(gate(part)) * up(part))
    return y


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--carpool", required=True)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=6144)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", default="1,4,8,16,32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--int4", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kind = Int4 if args.int4 else Bf16
    bank = [(kind(args.width, args.hidden), kind(args.width, args.hidden), kind(args.hidden, args.width))
            for _ in range(args.experts)]
    generator = torch.Generator().manual_seed(0)
    print(f"{args.experts} experts of 3 x {args.hidden} x {args.width}, {args.threads} threads, PyTorch {torch.__version__} "
          f"{kind.__name__.lower()}, Carpool nvfp4; median ms")
    for batch in map(int, args.batch.split(",")):
        for k0 in (8, 3):
            policy = "vanilla" if k0 == 8 else f"oea:k0={k0}"
            torch_ms, ours_ms, distinct = [], [], []
            for _ in range(args.rounds):
                for _ in range(3):
                    x = torch.randn(batch, args.hidden, generator=generator).to(torch.bfloat16)
                    plan = assignments(batch, args.experts, k0, generator)
                    start = time.perf_counter()
                    step(bank, x, plan)
                    torch_ms.append((time.perf_counter() - start) * 1e3)
                    distinct.append(len(plan))
                report = json.loads(subprocess.run(
                    [args.carpool, "bench", "moe", "--shape", "glm-5", "--experts", str(args.experts), "--batch", str(batch),
                     "--routing", policy, "--threads", str(args.threads), "--seconds", "1", "--membw-megabytes", "256",
                     "--json"], check=True, capture_output=True, text=True).stdout)
                ours_ms.append(report["rows"][0]["us_median"] / 1e3)
            theirs, ours = statistics.median(torch_ms), statistics.median(ours_ms)
            print(f"B={batch:<3} {policy:<9} T={statistics.mean(distinct):6.1f}  PyTorch {theirs:8.1f}  Carpool {ours:8.1f}  "
                  f"ratio {theirs / ours:5.2f}")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
