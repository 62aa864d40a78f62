"""carpool bench membw and moe: the JSON contract, bad input, and a guard against kernels that got slow.

The guard is relative: in the same run, the int8 path must beat the fp32 one and the chosen variant the scalar one by margins
they hold with room to spare, so that it works on any machine and under load.
"""
import json
import os
import subprocess
import tempfile
import unittest

CARPOOL = os.environ["CARPOOL"]
SMALL = ["--threads", "1", "--seconds", "0.2", "--membw-megabytes", "256"]
ROW_KEYS = {"batch", "routing", "distinct_experts", "us_median", "us_p10", "us_p90", "gbytes_per_s", "fraction_of_membw",
            "tokens_per_s"}


def run(*args, **env):
    return subprocess.run([CARPOOL, "bench", *args], capture_output=True, text=True, timeout=240,
                          env={**os.environ, **env})


def bench_json(*args, **env):
    result = run(*args, "--json", **env)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


class Contract(unittest.TestCase):
    def test_moe(self):
        with tempfile.TemporaryDirectory() as folder:
            svg = os.path.join(folder, "roof.svg")
            report = bench_json("moe", "--shape", "demo", "--batch", "1,8", "--routing", "vanilla,oea:k0=3,oea:k0=5", "--layers",
                                "2", "--svg", svg, *SMALL)
            with open(svg) as f:
                self.assertIn("rows per distinct expert", f.read())
        self.assertEqual(len(report["rows"]), 6)
        for row in report["rows"]:
            self.assertLessEqual(ROW_KEYS, set(row))
        self.assertGreater(report["membw_gbytes_per_s"], 0)
        self.assertEqual(report["rows"][0]["distinct_experts"], 8)
        self.assertEqual(report["rows"][1]["routing"], "oea:k0=3")

    def test_moe_writes_the_assignments_of_its_timed_steps(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "steps.json")
            report = bench_json("moe", "--shape", "demo", "--batch", "1,8", "--routing", "vanilla,oea:k0=3", "--experts-only",
                                "--assignments", path, *SMALL)
            with open(path) as f:
                written = json.load(f)
            self.assertEqual(run("moe", "--shape", "demo", "--batch", "1", "--assignments", folder, *SMALL).returncode, 2)
        self.assertEqual((written["shape"], written["experts"]), ("demo", 128))
        self.assertEqual(report["bytes_always"], 0)
        for row in report["rows"]:
            steps = [s for s in written["steps"] if (s["batch"], s["routing"]) == (row["batch"], row["routing"])]
            self.assertEqual(len(steps), row["steps"])
            distinct = [len({e for ids in s["ids"] for e in ids}) for s in steps]
            self.assertAlmostEqual(sum(distinct) / len(distinct), row["distinct_experts"])
            self.assertLessEqual({len(s["ids"]) for s in steps}, {row["batch"]})

    def test_decode(self):
        report = bench_json("decode", "--batch", "1,2", "--context", "8,80", "--steps", "3", "--threads", "1",
                            "--dense-format", "q8", "--activations", "q8", "--membw-megabytes", "256", "--prefill", "40",
                            "--prefill-runs", "2")
        self.assertEqual([(r["tokens"], r["routing"]) for r in report["prefill"]], [(40, "vanilla"), (40, "oea:k0=3")])
        for row in report["prefill"]:
            self.assertGreaterEqual(row["us_median"], row["us_best"])
            self.assertGreater(row["us_best"], 0)
        self.assertEqual([(r["context"], r["batch"]) for r in report["rows"]][::2], [(8, 1), (8, 2), (80, 1), (80, 2)])
        for row in report["rows"]:
            self.assertLessEqual(ROW_KEYS, set(row))
        self.assertGreater(report["membw_gbytes_per_s"], 0)

    def test_decode_of_a_stack_of_real_layers(self):
        # Deeper than the 2048 tokens from which on the indexer chooses.
        report = bench_json("decode", "--shape", "glm-5", "--layers", "1", "--experts", "16", "--batch", "2", "--context",
                            "64,2200", "--steps", "1", "--activations", "q8", "--threads", "2", "--membw-megabytes", "256")
        self.assertEqual({(r["context"], r["routing"]) for r in report["rows"]},
                         {(c, p) for c in (64, 2200) for p in ("vanilla", "oea:k0=3")})
        for row in report["rows"]:
            self.assertLessEqual(ROW_KEYS | {"model_gain", "moe_gain", "model_us"}, set(row))
            self.assertGreater(row["stack_us"]["keys"], 0)
            if row["routing"] == "vanilla":
                self.assertEqual((row["model_gain"], row["moe_gain"]), (1, 1))
        self.assertGreater(report["rows"][0]["stack_us"]["indexer"], 0)
        result = run("decode", "--shape", "glm-5", "--layers", "1000")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "need .* GB, .* GB are free")

    def test_membw(self):
        report = bench_json("membw", "--threads", "1", "--megabytes", "256", "--passes", "2")
        self.assertEqual({(r["threads"], r["pages"], r["prefetch"]) for r in report["rows"]},
                         {(1, pages, prefetch) for pages in ("small", "huge") for prefetch in (False, True)})
        self.assertEqual(report["membw_gbytes_per_s"], max(r["gbytes_per_s"] for r in report["rows"]))

    def test_bad_input(self):
        for args, words in [
            (["moe", "--shape", "glm-9"], ["glm-9", "glm-5"]),
            (["moe", "--format", "q3"], ["q3", "nvfp4"]),
            (["moe", "--logits", "skewed:heat=1"], ["heat", "popularity"]),
            (["moe", "--batch", "1,x"], ["--batch"]),
            (["moe", "--shape", "demo", "--routing", "oea:k0=9"], ["k0"]),
            (["membw", "--thread-list", "0"], ["--thread-list"]),
            (["decode", "--shape", "qwen3-30b"], ["qwen3-30b", "glm-5"]),
            (["decode", "--dense-format", "q4"], ["--dense-format", "q8", "q4"]),
            (["moe", "--threads", "0"], ["--threads"]),
        ]:
            with self.subTest(args=args):
                result = run(*args)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(result.stdout, "")
                self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)


class Guard(unittest.TestCase):
    def best_us(self, *args, **env):
        report = bench_json("moe", "--shape", "qwen3-30b", "--experts", "16", "--batch", "4", "--routing", "vanilla", *SMALL, *args,
                            **env)
        return report["rows"][0]["us_p10"], report["isa"]

    def test_the_fast_kernels_are_fast(self):
        f32, isa = self.best_us("--activations", "f32")
        if isa == "scalar":
            self.skipTest("no faster variant on this CPU")
        q8, _ = self.best_us("--activations", "q8")
        self.assertLess(q8, 0.8 * f32, "int8 activations gain nothing over fp32 ones")
        scalar, _ = self.best_us("--activations", "q8", CARPOOL_ISA="scalar")
        self.assertLess(q8, 0.2 * scalar, f"{isa} gains little over scalar")


if __name__ == "__main__":
    unittest.main()
