"""carpool plan: the JSON contract, this machine and presets, bad input."""
import json
import os
import pathlib
import subprocess
import unittest

CARPOOL = os.environ["CARPOOL"]


def run(*args):
    return subprocess.run([CARPOOL, *map(str, args)], capture_output=True, text=True, timeout=300)


class Plan(unittest.TestCase):
    def test_preset(self):
        result = run("plan", "--shape", "glm-5", "--hardware", "h200-x8", "--batch", "1,16", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        plan = json.loads(result.stdout)
        self.assertEqual([(r["batch"], r["routing"]) for r in plan["rows"]],
                         [(b, p) for b in (1, 16) for p in ("vanilla", "oea:k0=3")])
        for r in plan["rows"]:
            self.assertIn(r["bound"], ("memory", "compute", "latency"))
            self.assertAlmostEqual(r["tokens_per_s"], r["batch"] / r["us"] * 1e6, delta=1e-6 * r["tokens_per_s"])
        self.assertLess(plan["rows"][3]["bytes"], plan["rows"][2]["bytes"])
        self.assertTrue(plan["fits"])

    def test_here(self):
        result = run("plan", "--shape", "demo", "--batch", "4", "--membw-mb", "64", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        plan = json.loads(result.stdout)
        self.assertGreater(plan["bandwidth_gbytes_per_s"], 0.1)
        self.assertGreater(plan["rows"][0]["tokens_per_s"], 0)

    def test_config(self):
        model = pathlib.Path(__file__).resolve().parent.parent / "models" / "books-20m"
        plans = []
        for what in (model, model / "config.json", "demo"):
            result = run("plan", what, "--hardware", "h200", "--batch", "4", "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            plans.append(json.loads(result.stdout))
        for key in ("expert_bytes", "fits"):
            self.assertEqual(plans[0][key], plans[2][key])
        self.assertAlmostEqual(plans[0]["weight_bytes"], plans[2]["weight_bytes"], delta=1e-3 * plans[2]["weight_bytes"])
        self.assertEqual(plans[0]["rows"], plans[1]["rows"])

    def test_explains_tiles(self):
        plan = json.loads(run("plan", "glm-5", "--hardware", "rtx-pro-6000-x8", "--batch", "16", "--json").stdout)
        self.assertIn("compute-bound from the first row on", plan["expert_sentence"])
        self.assertIn("128 rows", plan["expert_sentence"])
        plan = json.loads(run("plan", "glm-5", "--hardware", "h200-x8", "--format", "fp8", "--batch", "16", "--json").stdout)
        self.assertIn("memory-bound up to", plan["expert_sentence"])
        measured = run("plan", "glm-5", "--hardware", "h200-x8", "--batch", "16", "--measured-t", "90,35", "--json")
        self.assertEqual([r["distinct_experts"] for r in json.loads(measured.stdout)["rows"]], [90, 35])

    def test_verify(self):
        result = run("plan", "--shape", "demo", "--batch", "2", "--membw-mb", "64", "--verify",
                     "--seconds", "0.1", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = json.loads(result.stdout)["rows"]
        self.assertEqual(len(rows), 2)
        self.assertTrue(all(r["measured_us"] > 0 for r in rows))

    def test_bad_input(self):
        for args, word in ((["--hardware", "abacus"], "h200"), (["--shape", "gpt-9"], "glm-5"),
                           (["--bandwidth", "100"], "--tops"), (["--format", "q3"], "q3"),
                           (["--hardware", "h100", "--measured-t", "3,x"], "--measured-t"),
                           (["--hardware", "h100", "--verify"], "--verify"),
                           (["/no/such/config.json"], "/no/such"), (["gpt-9"], "glm-5"),
                           (["--batch", "0"], "--batch"), (["--routing", "fast"], "fast")):
            result = run("plan", *args)
            self.assertEqual(result.returncode, 2, (args, result.stdout, result.stderr))
            self.assertIn(word, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)


if __name__ == "__main__":
    unittest.main()
