"""carpool ab: the JSON contract, A/A is exact, the price agrees with perplexity, bad input exits 2 with one line."""
import json
import os
import subprocess
import tempfile
import unittest

CARPOOL = os.environ["CARPOOL"]
QUICK = ["--batch", "8", "--context", "24", "--windows", "1", "--rounds", "5", "--steps", "3", "--prompt", "4"]


def run(*args):
    return subprocess.run([CARPOOL, *map(str, args)], capture_output=True, text=True, timeout=300)


def ab(*args):
    result = run("ab", *args, *QUICK, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


class Ab(unittest.TestCase):
    def test_same_policy_has_no_price(self):
        r = ab("vanilla", "vanilla")
        self.assertEqual((r["kl_mean"], r["kl_p99"], r["kl_max"]), (0.0, 0.0, 0.0))
        self.assertEqual(r["top1_agreement"], 1.0)
        self.assertEqual(r["cross_entropy_change"], {"value": 0.0, "ci95": [0.0, 0.0]})
        self.assertEqual(r["changed_assignments"], 0)
        low, high = r["ratio"]["ci95"]
        self.assertTrue(low <= r["ratio"]["value"] <= high)

    def test_candidate(self):
        r = ab("oea:k0=3", "--seed", "1")
        self.assertEqual(r["baseline"]["routing"], "vanilla")
        self.assertEqual(r["candidate"]["routing"], "oea:k0=3")
        self.assertGreater(r["kl_mean"], 0.005)
        self.assertLess(r["kl_mean"], 0.5)
        self.assertGreaterEqual(r["kl_p99"], r["kl_p50"])
        self.assertGreater(r["changed_assignments"], 0)
        self.assertLess(r["candidate"]["distinct_experts"], 0.8 * r["baseline"]["distinct_experts"])
        self.assertLess(r["candidate"]["expert_bytes_per_step"], r["baseline"]["expert_bytes_per_step"])
        self.assertEqual(len(r["requests"]), 8)
        mean = sum(q["kl_mean"] for q in r["requests"]) / 8
        self.assertAlmostEqual(mean, r["kl_mean"], places=9)
        self.assertIn(r["winner"], ("none", "baseline", "candidate"))
        for side in ("baseline", "candidate"):
            p = run("perplexity", "--batch", 8, "--context", 24, "--windows", 1, "--json",
                    "--routing", r[side]["routing"])
            ce = json.loads(p.stdout)["cross_entropy"]
            self.assertAlmostEqual(ce, r[side]["cross_entropy"], places=6)

    def test_feature_that_never_acts(self):
        r = ab("vanilla", "near:delta=0.0000001")
        self.assertEqual(r["winner"], "none")
        self.assertIn("changed 0 assignments", r["verdict"])


class BadInput(unittest.TestCase):
    def check(self, args, *words):
        result = run("ab", *args)
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_arguments(self):
        self.check([], "BASELINE")
        self.check(["vanilla", "oea:k0=3", "a", "b"], "BASELINE")
        self.check(["vanilla", "nonsense"], "nonsense", "known")
        self.check(["vanilla", "oea:k0=9"], "k0", "1..8")
        self.check(["vanilla", "oea:k0=8"], "cannot differ")
        self.check(["vanilla", "oea:k0=3,min_rows=20"], "cannot differ", "20")
        self.check(["vanilla", "oea:k0=3", "--rounds", "4"], "--rounds", "at least 5")
        self.check(["vanilla", "oea:k0=3", "--batch", "600"], "too few prompts", "7200")
        self.check(["/no/such/model", "vanilla", "oea:k0=3"], "/no/such/model")

    def test_short_text(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "short.txt")
            with open(path, "w") as f:
                f.write("Too short for anything.\n")
            self.check(["oea:k0=3", "--text", path], "tokens", "at least")


if __name__ == "__main__":
    unittest.main()
