#!/usr/bin/env python3
"""Cross-entropy and distinct experts of the bundled model against an independent implementation's figures."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

CARPOOL = os.environ.get("CARPOOL", "build/release/carpool")
MODEL = pathlib.Path(__file__).resolve().parent.parent / "models/books-20m"


class Figures(unittest.TestCase):
    def test_perplexity_matches(self):
        for row in json.loads((MODEL / "figures.json").read_text())["rows"]:
            with self.subTest(row["policy"]):
                result = subprocess.run(
                    [CARPOOL, "perplexity", "--batch", str(row["B"]), "--context", str(row["N"]), "--windows",
                     str(row["windows"]), "--threads", "1", "--routing", row["policy"], "--json"],
                    capture_output=True, text=True, timeout=500, check=True)
                got = json.loads(result.stdout)
                self.assertEqual(got["tokens"], row["tokens"])
                self.assertAlmostEqual(got["cross_entropy"], row["ce"], delta=0.001)
                self.assertAlmostEqual(got["distinct_experts_mean"], row["T"], delta=0.002 * row["T"])
                self.assertAlmostEqual(got["experts_per_row_mean"], row["experts_per_row"], delta=1e-6)
                self.assertGreater(got["sparse_attention_rows"], 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
