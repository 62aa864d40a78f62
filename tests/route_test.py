"""carpool route and bench routing, from outside: published vectors, bad input, trace and replay."""
import json
import math
import os
import pathlib
import subprocess
import tempfile
import time
import unittest

CARPOOL = os.environ["CARPOOL"]
CONFIG = {"num_experts": 8, "num_experts_per_tok": 3, "scoring_func": "softmax", "norm_topk_prob": True}
LOGITS = [[3, 2, 1, 0, -1, -2, -3, -4], [-4, -3, 0, 1, 3, 2, -1, -2],
          [2, -1, 0, 3, -2, -3, 1, -4], [5, -9, -9, -9, -9, -9, -9, 4]]


class RouteTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return str(pathlib.Path(self.folder.name) / name)

    def run_route(self, document, *args, env=None):
        path = self.path("input.json")
        with open(path, "w") as f:
            f.write(document if isinstance(document, str) else json.dumps(document))
        return subprocess.run([CARPOOL, "route", path, "--json", *args], capture_output=True, text=True, timeout=120,
                              env={**os.environ, **(env or {})})

    def route(self, document, *args, **kw):
        done = self.run_route(document, *args, **kw)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_oea_vectors(self):
        doc = {"config": CONFIG, "logits": LOGITS}
        vanilla = self.route(doc, "--routing", "vanilla")
        self.assertEqual(vanilla["distinct"], 8)
        one = self.route(doc, "--routing", "oea:k0=1")
        self.assertEqual(one["ids"], [[0, 3, 4], [4, 3, 0], [3, 0, 4], [0, 3, 4]])
        self.assertEqual((one["distinct"], one["union"]), (3, [0, 3, 4]))
        for got, want in zip(one["weights"][0], [.936240, .046613, .017148]):
            self.assertAlmostEqual(got, want, delta=1e-6)
        self.assertEqual(one["reasons"][0], ["own", "piggyback", "piggyback"])
        doc["rows"] = [{}, {}, {}, {"valid": False}]
        two = self.route(doc, "--routing", "oea:k0=2")
        self.assertEqual(two["union"], [0, 1, 3, 4, 5])
        self.assertEqual((two["ids"][3], two["reasons"][3]), ([-1, -1, -1], ["padded"] * 3))

    def test_exact_and_prefill_rows_stay(self):
        doc = {"config": CONFIG, "logits": LOGITS, "rows": [{"exact": True}, {"phase": "prefill"}, {}, {}]}
        vanilla = self.route(doc, "--routing", "vanilla")
        oea = self.route(doc, "--routing", "oea:k0=1")
        self.assertEqual(vanilla["ids"][:2], oea["ids"][:2])
        self.assertEqual(vanilla["weights"][:2], oea["weights"][:2])

    def test_other_engines_functions(self):
        x = [0.5, -1.0, 2.0, 0.25, -0.5, 1.5, -2.0, 1.0]
        b = [0, 0.5, -0.25, 0.125, 0, -0.5, 0.75, 0.0625]
        config = {"num_experts": 8, "num_experts_per_tok": 3, "scoring_func": "sigmoid", "routed_scaling_factor": 2.5,
                  "function": "F6", "fused_shared": 1}
        out = self.route({"config": config, "logits": [x], "bias": b})
        self.assertEqual(out["ids"], [[6, 7, 1, 8]])
        self.assertAlmostEqual(out["weights"][0][3], 0.4, delta=1e-6)
        self.assertEqual(out["reasons"][0][3], "shared")

    def test_environment(self):
        doc = {"config": CONFIG, "logits": LOGITS}
        self.assertEqual(self.route(doc, env={"SGLANG_OEA_K0": "1"})["routing"], "oea:k0=1")
        self.assertEqual(self.route(doc, "--routing", "exact", env={"SGLANG_OEA_K0": "1"})["routing"], "vanilla")
        self.assertEqual(self.run_route(doc, env={"CARPOOL_OEA_K0": "x"}).returncode, 2)

    def test_trace_and_replay(self):
        doc = {"config": CONFIG, "logits": LOGITS, "rows": [{}, {}, {"exact": True}, {"valid": False}]}
        trace = self.path("trace.jsonl")
        first = self.route(doc, "--routing", "oea:k0=1", "--trace", trace)
        records = [json.loads(line) for line in pathlib.Path(trace).read_text().splitlines()]
        self.assertEqual([r["record"] for r in records], ["config", "step", "row", "row", "row"])
        self.assertEqual(records[1]["distinct"], first["distinct"])
        row = records[2]
        self.assertEqual(row["vanilla"], [b["id"] for b in row["best"][:3]])
        self.assertEqual(row["ids"], first["ids"][0])
        again = self.route(doc, "--replay", trace)
        for key in ("ids", "weights", "distinct", "union", "reasons"):
            self.assertEqual(first[key], again[key])
        counters = self.path("level1.jsonl")
        self.route(doc, "--trace", counters, "--trace-level", "1")
        self.assertEqual([json.loads(line)["record"] for line in pathlib.Path(counters).read_text().splitlines()], ["config", "step"])
        self.assertEqual(self.run_route(doc, "--replay", counters).returncode, 2)
        doc["logits"] = [row[::-1] for row in LOGITS]
        wrong = self.run_route(doc, "--replay", trace)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("other logits", wrong.stderr)

    def test_trace_of_groups(self):
        config = {"num_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2, "scoring_func": "sigmoid",
                  "norm_topk_prob": True, "routed_scaling_factor": 1.0, "function": "F6"}
        # identity on the logits' order; groups {0,1}, {2,3}, ... ; the second row ties groups 1 and 2 for the last place
        logits = [[3, 2, 0, -1, 1, 0.5, -3, -4], [3, 2, 1, 0, 1, 0, -3, -4]]
        trace = self.path("groups.jsonl")
        out = self.route({"config": config, "logits": logits, "bias": [0] * 8}, "--trace", trace)
        _, step, first, second = [json.loads(line) for line in pathlib.Path(trace).read_text().splitlines()]
        self.assertEqual(step["ties_in_groups"], 1)
        self.assertEqual(first["groups_kept"], [0, 2])
        self.assertEqual(second["groups_kept"], [0, 1])
        sigmoid = lambda x: 1 / (1 + math.exp(-x))
        scores = [sigmoid(a) + sigmoid(b) for a, b in zip(logits[0][::2], logits[0][1::2])]
        for got, want in zip(first["group_scores"], scores):
            self.assertAlmostEqual(got, want, delta=1e-6)
        self.assertAlmostEqual(first["group_margin"], scores[2] - scores[1], delta=1e-6)
        self.assertEqual(second["group_margin"], 0)
        for row, ids in zip((first, second), out["ids"]):
            self.assertTrue(all(i // 2 in row["groups_kept"] for i in ids))

    def test_nan_rows(self):
        out = self.route({"config": CONFIG, "logits": [["NaN"] * 8, ["inf", "-inf", 0, 0, 0, 0, 0, "NaN"]]})
        self.assertEqual(out["ids"][0], [0, 1, 2])
        self.assertEqual(out["ids"][1][0], 0)

    def test_bad_input(self):
        good = {"config": CONFIG, "logits": LOGITS}

        def config(**change):
            return {**good, "config": {**CONFIG, **change}}
        cases = [
            ("{", "JSON object"), ("[]", "JSON object"), ("{}", "config"),
            ({"config": CONFIG}, "logits"),
            ({"config": CONFIG, "logits": [[1, 2]]}, "logits[0]: wanted an array of 8"),
            ({"config": CONFIG, "logits": [LOGITS[0], [1, 2, 3, "x", 5, 6, 7, 8]]}, "logits[1][3]"),
            ({"config": CONFIG, "logits": LOGITS[0]}, "logits[0]"),
            ({**good, "bias": [1, 2]}, "bias: wanted an array of 8"),
            ({**good, "bias": [0] * 7 + ["NaN"]}, "bias[7]: wanted a finite number"),
            (config(logits_dtype="int3"), "logits_dtype: wanted fp32, bf16 or fp16, got 'int3'"),
            (config(logits_dtype="bf16"), "name it in config.function"),
            ({**good, "rows": [{}]}, "rows: wanted an array of 4"),
            ({**good, "rows": [{"phase": "warm"}, {}, {}, {}]}, "rows[0].phase"),
            ({**good, "rows": [{}, {"exact": 1}, {}, {}]}, "rows[1].exact"),
            ({**good, "rows": [{}, {"exakt": True}, {}, {}]}, "unknown key 'exakt'"),
            (config(num_experts=0), "num_experts"), (config(num_experts_per_tok=9), "top_k"),
            (config(n_group=2, topk_group=3), "groups_kept"), (config(n_group=4, topk_group=1), "top_k: wanted at most"),
            (config(n_group=3, topk_group=1), "num_groups"),
            (config(n_group=8, topk_group=4, topk_method="noaux_tc"), "second maximum"),
            (config(routed_scaling_factor="NaN"), "routed_scaling_factor"),
            (config(routed_scaling_factor=1e39), "routed_scaling_factor"),
            (config(scoring_func="relu"), "relu"), (config(function="F99"), "function"),
            (config(preset="glm-6"), "preset"),
        ]
        for document, wanted in cases:
            done = self.run_route(document)
            self.assertEqual(done.returncode, 2, (document, done.stderr))
            self.assertIn(wanted, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for policy, wanted in [("oea:k0=4", "1..3"), ("oee:k0=1", "known: "), ("oea:k=1", "known: k0"), ("auto", "calibration"),
                               ("lynx:budget=9", "1..8"), ("near:delta=-1", "0..100")]:
            done = self.run_route(good, "--routing", policy)
            self.assertEqual(done.returncode, 2, policy)
            self.assertIn(wanted, done.stderr)

    def test_a_gigabyte_is_refused_quickly(self):
        path = self.path("huge.json")
        with open(path, "wb") as f:
            f.truncate(1 << 30)
        before = time.monotonic()
        done = subprocess.run([CARPOOL, "route", path], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertLess(time.monotonic() - before, 5)
        self.assertIn("huge.json", done.stderr)
        self.assertEqual(subprocess.run([CARPOOL, "route", self.path("none")], capture_output=True).returncode, 2)

    def test_bench_routing(self):
        done = subprocess.run([CARPOOL, "bench", "routing", "--shape", "demo", "--batch", "1,4", "--repeats", "20",
                               "--routing", "vanilla,oea:k0=3", "--json"], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(done.stdout)["rows"]
        self.assertEqual([(r["batch"], r["routing"]) for r in rows],
                         [(1, "vanilla"), (1, "oea:k0=3"), (4, "vanilla"), (4, "oea:k0=3")])
        self.assertEqual(rows[0]["distinct_experts"], 8)
        for bad in (["--shape", "x"], ["--batch", "0"], ["--routing", "oea:k0=99"]):
            self.assertEqual(subprocess.run([CARPOOL, "bench", "routing", *bad], capture_output=True).returncode, 2)


if __name__ == "__main__":
    unittest.main()
