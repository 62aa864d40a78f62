"""carpool explain, from outside."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

CARPOOL = os.environ["CARPOOL"]


def run(*args):
    return subprocess.run([CARPOOL, "explain", *args], capture_output=True, text=True, timeout=60)


class ExplainTest(unittest.TestCase):
    def explain(self, *args):
        done = run(*args, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_glm5_story(self):
        out = self.explain("--preset", "glm-5", "--engine", "seed-doc")
        self.assertEqual((out["profile"], out["kernel"]), ("seed-doc", "biased_grouped_topk_impl"))
        self.assertEqual([r["verdict"] for r in out["rules"]],
                         ["fail@epg_le_32", "fail@epg_le_32", "fail@N_eq_384", "match"])
        self.assertEqual(set(out["rules"][0]["predicates"][0]) & {"name", "lhs", "op", "rhs", "value", "evaluated"},
                         {"name", "lhs", "op", "rhs", "value", "evaluated"})
        self.assertTrue(any("select_experts level" in n for n in out["notes"]))

    def test_fused_shared_and_device(self):
        first = {r["rule"]: r["verdict"] for r in self.explain("--preset", "glm-5", "--fused-shared", "1")["rules"]}
        self.assertEqual(first["R1"], "fail@s_eq_0")
        first = {r["rule"]: r["verdict"] for r in self.explain("--preset", "glm-5")["rules"]}
        self.assertEqual(first["R1"], "fail@kgG_ge_K")
        self.assertEqual(self.explain("--preset", "glm-5", "--device", "cpu")["kernel"], "biased_grouped_topk_cpu")

    def test_tokens(self):
        for tokens, variant in (("1", "small"), ("513", "large")):
            notes = self.explain("--preset", "kimi-k2", "--tokens", tokens)["notes"]
            self.assertTrue(any(f"its {variant} variant" in n for n in notes), notes)

    def test_all_is_a_full_table(self):
        out = self.explain("--all")
        self.assertIn("llama.cpp", out["profiles"])
        for row in out["rows"]:
            self.assertEqual(list(row["kernels"]), out["profiles"])
            self.assertTrue(all(row["kernels"].values()), row)
        self.assertEqual(run("--all").returncode, 0)

    def test_diff(self):
        out = self.explain("--preset", "glm-5", "--diff", "seed-doc", "sglang-2026-02")
        self.assertTrue(out["same_kernel"])
        self.assertEqual(out["first_difference"]["rule"], "R1")

    def test_config_of_the_bundled_model(self):
        config = pathlib.Path(__file__).resolve().parent.parent / "models/books-20m/config.json"
        out = self.explain("--config", str(config))
        self.assertEqual((out["config"]["N"], out["config"]["k"]), (128, 8))

    def test_bad_input_is_exit_2_with_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            bad = pathlib.Path(folder) / "bad.json"
            bad.write_text("{\"num_experts\": 8")
            topk = pathlib.Path(folder) / "topk.json"
            topk.write_text('{"num_experts": 8, "num_experts_per_tok": 9}')
            for args, wanted in [
                (["--preset", "glm-6"], "glm-5"),
                (["--preset", "glm-5", "--engine", "sglang"], "sglang-2026-02"),
                (["--config", "/nonexistent/config.json"], "/nonexistent/config.json"),
                (["--config", str(bad)], "JSON object"),
                (["--config", str(topk)], "top_k"),
                (["--preset", "glm-5", "--device", "tpu"], "cuda, hip"),
                (["--preset", "glm-5", "--dtype", "int3"], "bf16"),
                (["--preset", "glm-5", "--set", "flashinfer=yes"], "NAME=0"),
                (["--preset", "glm-5", "--set", "turbo=1"], "flashinfer"),
                (["--preset", "glm-5", "--fused-shared", "99"], "fused-shared"),
                (["--preset", "glm-5", "--fused-shared", "-1"], ""),
                ([], "--preset"),
            ]:
                done = run(*args)
                self.assertEqual(done.returncode, 2, (args, done.stderr))
                self.assertIn(wanted, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
