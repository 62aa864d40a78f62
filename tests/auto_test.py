"""--routing auto end to end: a sweep writes the calibration, then generate, bench and serve obey it."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from serving import CARPOOL, Server, parallel

PROMPTS = ["It was a dark night", "The captain said", "She looked at", "In the morning", "He had never", "When the"]
SWEEP = ["--batch", "2,6", "--routing", "oea:k0=4,oea:k0=2", "--context", "16", "--tokens", "96", "--rounds", "5",
         "--steps", "2", "--prompt", "4", "--per-layer", "--max-kl", "9", "--max-kl-p99", "99"]


def run(*args, env=None):
    return subprocess.run([CARPOOL, *map(str, args)], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **(env or {})})


class Auto(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.out = pathlib.Path(cls.folder.name, "sweep")
        result = run("sweep", *SWEEP, "--out", cls.out, "--json")
        assert result.returncode == 0, result.stderr
        cls.sweep = json.loads(result.stdout)
        # A machine on which only distinct experts cost time, so that the choice is known.
        calibration = json.loads((cls.out / "calibration.json").read_text())
        calibration["fit"] = {"a": 0.0, "b": 5.0, "c": 1.0, "r2": 1.0}
        cls.calibration = pathlib.Path(cls.folder.name, "calibration.json")
        cls.calibration.write_text(json.dumps(calibration))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_per_layer_sensitivity(self):
        layers = self.sweep["layers"]
        self.assertEqual({p["layer"] for p in layers}, set(range(5)))
        self.assertEqual({p["k0"] for p in layers}, set(range(2, 9)))
        for p in layers:
            self.assertEqual(p["kl_mean"] == 0, p["k0"] == 8, p)
        # A lower k0 of a layer reads fewer of its experts.
        for layer in range(5):
            t = [p["distinct_experts"] for p in layers if p["layer"] == layer and p["batch"] == 6]
            self.assertEqual(t, sorted(t, reverse=True))
        # The settings per layer were measured like all others.
        again = run("sweep", *SWEEP, "--out", self.out, "--json")
        self.assertEqual(json.loads(again.stdout)["layers"], layers)
        tight = run("sweep", *SWEEP[:-4], "--max-kl", 0.02, "--max-kl-p99", 9, "--out", self.out, "--json")
        points = json.loads(tight.stdout)["points"]
        mixed = [p for p in points if "/" in p["routing"]]
        self.assertTrue(mixed, [p["routing"] for p in points])
        self.assertTrue(all(p["kl_mean"] > 0 and p["step_us"] > 0 for p in mixed))

    def test_generate(self):
        prompts = [a for p in PROMPTS for a in ("--prompt", p)]
        result = run("generate", *prompts, "--max-tokens", 24, "--ignore-eos", "--json", "--routing", "auto",
                     "--calibration", self.calibration)
        self.assertEqual(result.returncode, 0, result.stderr)
        stats = json.loads(result.stdout)["stats"]
        self.assertEqual(stats["auto"]["name"], "auto")
        self.assertEqual(stats["auto"]["changes"], 1)
        self.assertEqual(stats["routing"], "oea:k0=2")
        # One row alone: nothing to share, exact.
        one = run("generate", "--prompt", PROMPTS[0], "--max-tokens", 24, "--ignore-eos", "--json", "--routing", "auto",
                  "--calibration", self.calibration, "--temperature", 0)
        exact = run("generate", "--prompt", PROMPTS[0], "--max-tokens", 24, "--ignore-eos", "--json", "--temperature", 0)
        self.assertEqual(json.loads(one.stdout)["outputs"], json.loads(exact.stdout)["outputs"])
        self.assertEqual(json.loads(one.stdout)["stats"]["auto"]["changes"], 0)
        by_environment = run("generate", "--prompt", "It", "--max-tokens", 2, "--json",
                             env={"CARPOOL_ROUTING": "auto", "CARPOOL_CALIBRATION": str(self.calibration)})
        self.assertIn("auto", json.loads(by_environment.stdout)["stats"])

    def test_bench_decode(self):
        result = run("bench", "decode", "--routing", "vanilla,auto", "--calibration", self.calibration, "--batch", "1,6",
                     "--steps", 12, "--context", 4, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([r["routing"] for r in json.loads(result.stdout)["rows"]],
                         ["vanilla", "auto (vanilla)", "vanilla", "auto (oea:k0=2)"])

    def test_serve(self):
        with Server("--routing", "auto:max_kl=8", "--calibration", self.calibration) as server:
            self.assertEqual(json.loads(server.get("/v1/models")[1])["data"][0]["routing"], "auto:max_kl=8")
            alone = server.complete("It was", max_tokens=12, ignore_eos=True)
            self.assertEqual(alone["usage"]["moe"]["routing"], "vanilla")
            together = server.complete(PROMPTS, max_tokens=40, ignore_eos=True)
            self.assertTrue(together["usage"]["moe"]["batch_dependent"])
            metrics = server.metrics()
            self.assertGreaterEqual(metrics["carpool:auto_policy_changes_total"], 1)
            self.assertIn('carpool:auto_fit_microseconds{term="expert"}', metrics)
            self.assertIn("carpool:auto_fit_live", metrics)
            self.assertIn("auto: vanilla -> oea:k0=2", server.stderr())
            # A policy by hand switches it off, "auto" on again; an exact request stays exact.
            status, answer = server.post("/v1/moe/routing", {"routing": "oea:k0=5"})
            self.assertEqual((status, answer["previous"]), (200, "auto:max_kl=8"))
            self.assertNotIn("carpool:auto_fit_live", server.metrics())
            status, answer = server.post("/v1/moe/routing", {"routing": "auto"})
            self.assertEqual((status, answer["routing"]), (200, "auto"))
            self.assertIn("carpool:auto_fit_live", server.metrics())
            solo = server.complete("It was", max_tokens=12, ignore_eos=True, moe={"routing": "exact"})
            self.assertEqual(solo["choices"][0]["text"], alone["choices"][0]["text"])
            self.assertEqual(server.post("/v1/moe/routing", {"routing": "auto:max_kl=-1"})[0], 400)
        with Server() as server:
            status, answer = server.post("/v1/moe/routing", {"routing": "auto"})
            self.assertEqual(status, 400)
            self.assertIn("calibration", answer["error"]["message"])

    def test_bad_calibrations(self):
        def refused(text, *words, args=("--routing", "auto")):
            path = pathlib.Path(self.folder.name, "bad.json")
            path.write_text(text)
            for command in (("generate", "--prompt", "It"), ("bench", "decode"), ("serve", "--port", "0")):
                result = run(*command, *args, "--calibration", path)
                self.assertEqual(result.returncode, 2, (command, result.stdout, result.stderr))
                self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)

        good = json.loads(self.calibration.read_text())
        refused("{", "calibration")
        refused(json.dumps({**good, "format": "other"}), "format")
        refused(json.dumps({**good, "points": [{"batch": 2}]}), "routing")
        refused(json.dumps({**good, "fingerprint": {**good["fingerprint"], "experts": 64}}), "experts = 64")
        refused(json.dumps(good), "max_kl", args=("--routing", "auto:max_kl=0.0000001"))
        missing = run("generate", "--prompt", "It", "--routing", "auto", "--calibration", "/no/such/file")
        self.assertEqual(missing.returncode, 2)
        self.assertIn("carpool sweep", missing.stderr)


if __name__ == "__main__":
    unittest.main()
