#!/usr/bin/env python3
"""A/A: `carpool ab vanilla vanilla` again and again. No test of the default run: it needs a machine to itself.

Wanted of 20 runs: KL exactly 0 in all, an interval that covers 1 in at least 17, a winner in at most 2.
"""
import argparse
import json
import os
import subprocess
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=16)
    options = parser.parse_args()
    exact = covered = winners = 0
    for seed in range(options.runs):
        command = [os.environ.get("CARPOOL", "build/release/carpool"), "ab", "vanilla", "vanilla", "--json",
                   "--seed", str(seed), "--batch", str(options.batch), "--rounds", str(options.rounds),
                   "--steps", str(options.steps), "--prompt", "16", "--context", "32", "--windows", "1"]
        r = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        low, high = r["ratio"]["ci95"]
        exact += r["kl_max"] == 0.0 and r["top1_agreement"] == 1.0
        covered += low <= 1.0 <= high
        winners += r["winner"] != "none"
        print(f"run {seed + 1:2}: ratio {r['ratio']['value']:.4f}, 95 % {low:.4f} to {high:.4f}, KL max {r['kl_max']}, "
              f"winner {r['winner']}", flush=True)
    need, allowed = 17 * options.runs // 20, max(2 * options.runs // 20, 1)
    print(f"KL exactly 0 in {exact} of {options.runs}; interval covers 1 in {covered} (wanted {need}); "
          f"a winner in {winners} (at most {allowed})")
    return 0 if exact == options.runs and covered >= need and winners <= allowed else 1


if __name__ == "__main__":
    sys.exit(main())
