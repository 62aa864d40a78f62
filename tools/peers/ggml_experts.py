#!/usr/bin/env python3
"""The experts of one MoE layer in ggml (llama.cpp or ik_llama.cpp), beside `carpool bench moe`, in alternating runs.

    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install numpy xllamacpp
    /tmp/peer/bin/python tools/peers/ggml_experts.py --carpool build/release/carpool --type q4_0 --repack

    git clone https://github.com/ikawrakow/ik_llama.cpp /tmp/ik
    cmake -S /tmp/ik -B /tmp/ik/build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON && cmake --build /tmp/ik/build --target ggml
    /tmp/peer/bin/python tools/peers/ggml_experts.py --carpool build/release/carpool --library /tmp/ik/.../libggml.so \
        --type q4_0_r8

What is timed on both sides: the routed experts alone, gate, up, SwiGLU, down and the weighted sum; no router, no shared
expert. In every round Carpool runs first (`bench moe --experts-only --assignments FILE`, with the round as its seed), then
the peer runs the very steps Carpool timed, in the same order, with the same experts for every row, each with new hidden
states. The peer's weights stay in memory between the rounds; Carpool's are made anew by each of its runs.

The peer's side is a graph of its own operations as its models build it: mul_mat_id for gate and up, swiglu, mul_mat_id for
down, a product with the weights, and the sum over slots. Where the library has ggml_moe_up_gate and ggml_mul_multi_add
(ik_llama.cpp) those fused operations are used instead. --merge puts gate and up into one matrix. --repack asks for the
CPU backend's own repacked memory (CPU_REPACK). Weights: two random experts, quantised by the library, stand for all, each
with its own memory, which is asked to be huge pages as Carpool's is. The threads are the library's own (OpenMP in both),
kept between calls. Before anything is timed one step is compared with float32 products of the same experts.
"""
import argparse
import concurrent.futures
import ctypes
import glob
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

SILU = 10  # ggml_unary_op
I32, F32 = 26, 0  # ggml_type
DISTINCT = 2
MADV_HUGEPAGE = 14
HUGE = 2 << 20


def fail(message):
    sys.exit(f"ggml_experts: {message}")


def find_library():
    spec = importlib.util.find_spec("xllamacpp")
    for folder in (spec.submodule_search_locations if spec else []):
        for path in sorted(glob.glob(os.path.join(folder, "xllamacpp*.so"))):
            return path
    fail("no llama.cpp library; install xllamacpp or give --library")


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class Ggml:
    """The functions used here, with their types."""

    POINTERS = ("init new_graph new_tensor_1d new_tensor_2d new_tensor_3d mul_mat_id swiglu swiglu_split mul add view_2d "
                "moe_up_gate mul_multi_add backend_cpu_init backend_cpu_buffer_type backend_alloc_ctx_tensors_from_buft "
                "backend_buffer_get_base gallocr_new backend_cpu_reg backend_reg_dev_get backend_reg_get_proc_address "
                "threadpool_new get_data").split()

    def __init__(self, path, threads):
        self.lib = ctypes.CDLL(path)
        self.fused = hasattr(self.lib, "ggml_moe_up_gate")
        for name in self.POINTERS:
            if hasattr(self.lib, "ggml_" + name):
                getattr(self.lib, "ggml_" + name).restype = ctypes.c_void_p
        for name in ("quantize_chunk", "row_size", "backend_buffer_get_size", "nbytes"):
            getattr(self.lib, "ggml_" + name).restype = ctypes.c_size_t
        for name in ("type_name", "backend_buft_name"):
            getattr(self.lib, "ggml_" + name).restype = ctypes.c_char_p
        self.lib.ggml_gallocr_alloc_graph.restype = ctypes.c_bool
        self.cpu = self("backend_cpu_init")
        self("backend_cpu_set_n_threads", self.cpu, threads)
        if hasattr(self.lib, "ggml_threadpool_new"):
            params = ctypes.create_string_buffer(4096)
            self("threadpool_params_init", params, threads)
            self("backend_cpu_set_threadpool", self.cpu, self("threadpool_new", params))

    def __call__(self, name, *args):
        """Pointers are Python ints here and travel as 64 bits; sizes are given as c_size_t or c_int64."""
        function = getattr(self.lib, "ggml_" + name)
        wide = function.restype is ctypes.c_void_p
        result = function(*(ctypes.c_void_p(a) if isinstance(a, int) and a > 0xFFFFFFFF else a for a in args))
        return (result or 0) if wide else result

    def type_id(self, name):
        for i in range(400 if self.fused else 40):
            known = self("type_name", i)
            if known and known.decode() == name:
                return i
        fail(f"the library knows no type {name}")

    def context(self, tensors=64):
        return self("init", InitParams(tensors * 1024 + (1 << 16), None, True))

    def tensor(self, context, kind, *shape):
        return self(f"new_tensor_{len(shape)}d", context, kind, *(ctypes.c_int64(n) for n in shape))

    def repack_buffer_type(self):
        device = self("backend_reg_dev_get", self("backend_cpu_reg"), ctypes.c_size_t(0))
        address = self("backend_reg_get_proc_address", self("backend_cpu_reg"), b"ggml_backend_dev_get_extra_bufts")
        if not address:
            fail("the library has no repacked memory")
        types = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)(device)
        for i in range(16):
            if not types[i]:
                break
            if self("backend_buft_name", types[i]) == b"CPU_REPACK":
                return types[i]
        fail("the library has no CPU_REPACK memory")

    def set(self, tensor, array, offset=0):
        self("backend_tensor_set", tensor, array.ctypes.data, ctypes.c_size_t(offset), ctypes.c_size_t(array.nbytes))


class Experts:
    """The weights of all experts, and one graph per (rows, slots)."""

    def __init__(self, ggml, kind, repack, merge, experts, hidden, width, generator):
        self.ggml, self.hidden, self.graphs = ggml, hidden, {}
        self.floats = [[(generator.standard_normal(shape, dtype=np.float32) / np.float32(shape[1]**0.5))
                        for shape in ((width, hidden), (width, hidden), (hidden, width))] for _ in range(DISTINCT)]
        self.merge = merge
        self.parts = []
        buffer_type = ggml.repack_buffer_type() if repack else ggml("backend_cpu_buffer_type")
        sources = [[np.concatenate(f[:2]), f[2]] for f in self.floats] if merge else self.floats
        for part in range(len(sources[0])):
            rows, cols = sources[0][part].shape
            context = ggml.context()
            tensor = ggml.tensor(context, kind, cols, rows, experts)
            buffer = ggml("backend_alloc_ctx_tensors_from_buft", context, buffer_type)
            if not buffer:
                fail("not enough memory for the weights")
            self.ask_for_huge_pages(buffer)
            with concurrent.futures.ThreadPoolExecutor() as pool:
                packed = list(pool.map(lambda source: self.quantise(kind, source[part]), sources))
            if repack:
                ggml.set(tensor, np.concatenate([packed[e % DISTINCT] for e in range(experts)]))
            else:
                for e in range(experts):
                    ggml.set(tensor, packed[e % DISTINCT], e * packed[0].nbytes)
            self.parts.append(tensor)
        self.bytes = sum(ggml("nbytes", t) for t in self.parts)

    def ask_for_huge_pages(self, buffer):
        base = self.ggml("backend_buffer_get_base", buffer)
        end = base + self.ggml("backend_buffer_get_size", buffer)
        start = -(-base // HUGE) * HUGE
        libc = ctypes.CDLL(None)
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t((end - start) // HUGE * HUGE), MADV_HUGEPAGE)

    def quantise(self, kind, floats):
        rows, cols = floats.shape
        packed = np.empty(rows * self.ggml("row_size", kind, ctypes.c_int64(cols)), dtype=np.uint8)
        self.ggml("quantize_chunk", kind, floats.ctypes.data, packed.ctypes.data, ctypes.c_int64(0), ctypes.c_int64(rows),
                  ctypes.c_int64(cols), None, None)  # the last: user data, only in ik_llama.cpp
        return packed

    def graph(self, rows, slots):
        if (rows, slots) not in self.graphs:
            g = self.ggml
            c = g.context(256)
            x = g.tensor(c, F32, self.hidden, 1, rows)
            ids = g.tensor(c, I32, slots, rows)
            weights = g.tensor(c, F32, 1, slots, rows)
            for t in (x, ids, weights):
                g("set_input", t)
            if self.merge:
                unit = g("swiglu", c, g("mul_mat_id", c, self.parts[0], x, ids))
            elif g.fused:
                unit = g("moe_up_gate", c, self.parts[1], self.parts[0], x, ids, SILU)
            else:
                unit = g("swiglu_split", c, *(g("mul_mat_id", c, p, x, ids) for p in self.parts[:2]))
            down = g("mul_mat_id", c, self.parts[-1], unit, ids)
            if g.fused:
                y = g("mul_multi_add", c, down, weights)
            else:
                down = g("mul", c, down, weights)
                row = self.hidden * 4
                view = [g("view_2d", c, down, ctypes.c_int64(self.hidden), ctypes.c_int64(rows),
                          ctypes.c_size_t(slots * row), ctypes.c_size_t(s * row)) for s in range(slots)]
                y = view[0]
                for v in view[1:]:
                    y = g("add", c, y, v)
            g("set_output", y)
            graph = g("new_graph", c)
            g("build_forward_expand", graph, y)
            galloc = g("gallocr_new", g("backend_cpu_buffer_type"))
            if not g("gallocr_alloc_graph", galloc, graph):
                fail("not enough memory for a graph")
            self.graphs[rows, slots] = graph, x, ids, weights, y
        return self.graphs[rows, slots]

    def step(self, x, ids, weights):
        """Seconds the graph took."""
        graph, x_, ids_, weights_, _ = self.graph(*ids.shape)
        for tensor, array in ((x_, x), (ids_, ids), (weights_, weights)):
            self.ggml.set(tensor, array)
        start = time.perf_counter()
        status = self.ggml("backend_graph_compute", self.ggml.cpu, graph)
        seconds = time.perf_counter() - start
        if status != 0:
            fail(f"the library's graph failed with status {status}")
        return seconds

    def error(self, x, ids, weights):
        """Relative to float32 products: the rounding of the weights, and proof that the graph computes the experts."""
        self.step(x, ids, weights)
        y = np.empty_like(x)
        self.ggml("backend_tensor_get", self.graph(*ids.shape)[4], y.ctypes.data, ctypes.c_size_t(0), ctypes.c_size_t(y.nbytes))
        want = np.zeros_like(x)
        for d, (gate, up, down) in enumerate(self.floats):
            a = x @ gate.T
            share = np.where(ids % DISTINCT == d, weights, 0).sum(axis=1, keepdims=True)
            want += share * ((a / (1 + np.exp(-a)) * (x @ up.T)) @ down.T)
        return float(np.linalg.norm(y - want) / np.linalg.norm(want))


def carpool_steps(args, seed):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "steps.json")
        report = json.loads(subprocess.run(
            [args.carpool, "bench", "moe", "--shape", "glm-5", "--format", args.format, "--experts", str(args.experts),
             "--batch", args.batch, "--routing", args.routing, "--threads", str(args.threads), "--seconds",
             str(args.seconds), "--seed", str(seed), "--experts-only", "--assignments", path, "--json"],
            check=True, capture_output=True, text=True).stdout)
        with open(path) as f:
            return report, json.load(f)["steps"]


def quantiles(values):
    q = statistics.quantiles(values, n=10, method="inclusive")
    return f"{statistics.median(values):8.2f} ({q[0]:.1f}–{q[-1]:.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--carpool", required=True)
    parser.add_argument("--library", help="a shared library with ggml in it; default: the xllamacpp package")
    parser.add_argument("--type", default="q4_0", help="the peer's weight type, by ggml's name of it")
    parser.add_argument("--repack", action="store_true")
    parser.add_argument("--merge", action="store_true")
    parser.add_argument("--format", default="nvfp4", help="Carpool's weight format")
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--batch", default="1,4,8,16,32")
    parser.add_argument("--routing", default="vanilla,oea:k0=3")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of Carpool's timed steps per batch size and round")
    args = parser.parse_args()
    hidden, width = 6144, 2048
    generator = np.random.default_rng(0)
    ggml = Ggml(args.library or find_library(), args.threads)
    experts = Experts(ggml, ggml.type_id(args.type), args.repack, args.merge, args.experts, hidden, width, generator)

    def inputs(ids):
        x = generator.standard_normal((len(ids), hidden), dtype=np.float32)
        weights = generator.uniform(0.05, 0.2, ids.shape).astype(np.float32)
        return x, ids, weights

    ids = np.stack([generator.permutation(args.experts)[:8] for _ in range(5)]).astype(np.int32)
    error = experts.error(*inputs(ids))
    if not error < 0.25:
        fail(f"the peer's outputs differ from float32 products by {error:.3f} of their norm")
    name = args.type + (" repacked" if args.repack else "") + (" merged" if args.merge else "")
    print(f"{args.experts} experts of 3 x {hidden} x {width}, {args.threads} threads; peer {name}: "
          f"{experts.bytes / args.experts / 1e6:.2f} MB per expert, error {error:.3f}")
    ours, theirs, distinct, membw = {}, {}, {}, []
    for round_ in range(args.rounds):
        report, steps = carpool_steps(args, round_)
        membw.append(report["membw_gbytes_per_s"])
        seen = set()
        for step in steps:
            key = step["batch"], step["routing"]
            if len({len(ids) for ids in step["ids"]}) != 1:
                fail(f"{key[1]} gives the rows of a batch of {key[0]} different numbers of experts, which ggml cannot do")
            ids = np.array(step["ids"], dtype=np.int32)
            arrays = inputs(ids)
            for _ in range(0 if key in seen else 2):
                experts.step(*arrays)
            seen.add(key)
            ours.setdefault(key, []).append(step["us"] / 1e3)
            theirs.setdefault(key, []).append(experts.step(*arrays) * 1e3)
            distinct.setdefault(key, []).append(len(np.unique(ids)))
    bytes_ = report["bytes_per_expert"]
    print(f"Carpool {args.format}: {bytes_ / 1e6:.2f} MB per expert, kernels {report['isa']}; memory reads "
          f"{statistics.median(membw):.1f} GB/s (median of {args.rounds} rounds, {min(membw):.1f}–{max(membw):.1f}); "
          "ms: median (p10–p90)")
    for key in ours:
        t = statistics.mean(distinct[key])
        mine, other = statistics.median(ours[key]), statistics.median(theirs[key])
        print(f"B={key[0]:<3} {key[1]:<9} T={t:6.1f}  peer {quantiles(theirs[key]):<24} Carpool {quantiles(ours[key]):<24} "
              f"ratio {other / mine:5.2f}   GB/s {t * experts.bytes / args.experts / other / 1e6:5.1f} "
              f"{t * bytes_ / mine / 1e6:5.1f}   {len(ours[key])} steps", flush=True)


if __name__ == "__main__":
    main()
