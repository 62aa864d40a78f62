"""Guards the instruction counts of routing: they do not depend on the load of the machine, unlike times.

Needs valgrind (whose CPU has AVX2 at most, so it is the AVX2 kernels that are counted). Skips loudly without it.
The budgets are the counts of docs/BENCHMARKS.md plus a tenth.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

CARPOOL = os.environ["CARPOOL"]
# instructions of one Route() call on the GLM-5 gate (256 experts, top-8), 16 rows
BUDGET = {"vanilla": 105_500, "oea:k0=3": 142_000}


def instructions(policy, calls):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "callgrind.out"
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--toggle-collect=*RouterImpl*::Route(*",
             CARPOOL, "bench", "routing", "--shape", "glm-5", "--batch", "16", "--routing", policy,
             "--repeats", str(calls)], capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        found = re.search(r"Collected : (\d+)", done.stderr)
        return int(found.group(1))


@unittest.skipUnless(shutil.which("valgrind"), "valgrind is not installed: instruction counts are NOT guarded in this run")
class InstructionTest(unittest.TestCase):
    def test_budgets(self):
        for policy, budget in BUDGET.items():
            # The difference of two runs leaves out what happens once.
            per_call = (instructions(policy, 13) - instructions(policy, 5)) / 8
            print(f"{policy}: {per_call:.0f} instructions per call of 16 rows", file=sys.stderr)
            self.assertLess(per_call, budget)
            self.assertGreater(per_call, 1000)


if __name__ == "__main__":
    unittest.main()
