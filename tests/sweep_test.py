"""carpool sweep: points, front and recommendation; the report; resuming; bad input."""
import csv
import json
import os
import pathlib
import subprocess
import tempfile
import time
import unittest

CARPOOL = os.environ["CARPOOL"]
QUICK = ["--context", "16", "--tokens", "64", "--rounds", "5", "--steps", "2", "--prompt", "4"]
GRID = ["--batch", "2,6", "--routing", "oea:k0=4,topk:k=4"]


def run(*args):
    return subprocess.run([CARPOOL, *map(str, args)], capture_output=True, text=True, timeout=300)


class Sweep(unittest.TestCase):
    def test_sweep_report_and_resume(self):
        with tempfile.TemporaryDirectory() as folder:
            out, report = os.path.join(folder, "out"), os.path.join(folder, "report")
            first = run("sweep", *GRID, *QUICK, "--json", "--out", out, "--report", report, "--max-kl", 9,
                        "--max-kl-p99", 9)
            self.assertEqual(first.returncode, 0, first.stderr)
            r = json.loads(first.stdout)
            self.assertEqual([(p["batch"], p["routing"]) for p in r["points"]],
                             [(b, p) for b in (2, 6) for p in ("vanilla", "oea:k0=4", "topk:k=4")])
            self.assertEqual([p["batch"] for p in r["recommended"]], [2, 6])
            self.assertTrue({(p["batch"], p["routing"]) for p in r["pareto"]}
                            <= {(p["batch"], p["routing"]) for p in r["points"]})
            vanilla = r["points"][0]
            self.assertEqual((vanilla["kl_mean"], vanilla["cross_entropy_change"]), (0, 0))
            for p in r["points"]:
                if p["routing"] != "vanilla":
                    self.assertGreater(p["kl_mean"], 0)
            # One page, no outside files; the CSV has a row per point.
            page = pathlib.Path(report, "index.html").read_text()
            self.assertNotIn("src=", page)
            self.assertNotIn("href=", page)
            self.assertGreaterEqual(page.count("<svg"), 3)
            self.assertIn("carpool sweep", page.replace(CARPOOL, "carpool"))
            with open(os.path.join(report, "points.csv")) as f:
                self.assertEqual(len(list(csv.DictReader(f))), 6)
            self.assertTrue(os.path.exists(os.path.join(report, "cross_entropy_b6.svg")))
            # What an interrupted run had finished is not measured again.
            points = pathlib.Path(out, "points.jsonl")
            lines = points.read_text().splitlines(keepends=True)
            points.write_text("".join(lines[:4]) + lines[4][:20])
            second = run("sweep", *GRID, *QUICK, "--json", "--out", out)
            self.assertEqual(second.returncode, 0, second.stderr)
            self.assertIn("3 points", second.stderr)
            again = json.loads(second.stdout)["points"]
            self.assertEqual(again[:3], r["points"][:3])
            self.assertEqual([p["cross_entropy"] for p in again], [p["cross_entropy"] for p in r["points"]])
            # Another setting must not mix with these points.
            other = run("sweep", *GRID, *QUICK, "--seed", 5, "--out", out)
            self.assertEqual(other.returncode, 2)
            self.assertIn("seed", other.stderr)
            points.write_text(lines[0] + "{\"batch\": 1}\n")
            damaged = run("sweep", *GRID, *QUICK, "--out", out)
            self.assertEqual(damaged.returncode, 2)
            self.assertIn("line 2", damaged.stderr)

    def test_killed_sweep_resumes(self):
        with tempfile.TemporaryDirectory() as folder:
            points = pathlib.Path(folder, "points.jsonl")
            command = ["sweep", *GRID, *QUICK, "--out", folder]
            process = subprocess.Popen([CARPOOL, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while process.poll() is None and not points.exists():
                time.sleep(0.01)
            process.kill()
            process.wait()
            result = run(*command, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("points of an earlier run are kept", result.stderr)
            self.assertEqual(len(json.loads(result.stdout)["points"]), 6)

    def test_bad_input(self):
        for args, word in ((["--batch", "0"], "--batch"), (["--routing", "fast"], "fast"),
                           (["--routing", "oea:k0=99"], "k0"), (["--max-kl", "-1"], "max-kl"),
                           (["--batch", "4096"], "tokens"), (["--text", "/no/file"], "/no/file")):
            result = run("sweep", *args)
            self.assertEqual(result.returncode, 2, args)
            self.assertIn(word, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)


if __name__ == "__main__":
    unittest.main()
