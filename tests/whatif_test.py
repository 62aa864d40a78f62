"""carpool whatif: hand-made traces in every format, counted by hand; bad traces exit 2."""
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

CARPOOL = os.environ["CARPOOL"]


def run(*args):
    return subprocess.run([CARPOOL, *map(str, args)], capture_output=True, text=True, timeout=60)


# Two tokens of one step. Vanilla loads 5 distinct experts; k0=2 leaves 0 1 of the first and 4 0 of the second.
ROWS = [[0, 1, 2], [4, 0, 3]]


class Whatif(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def write(self, name, data):
        path = pathlib.Path(self.folder.name, name)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def rows(self, path, *args):
        result = run("whatif", path, "--routing", "vanilla,oea:k0=2,topk:k=1", "--json", *args)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def check(self, report):
        self.assertEqual([r["distinct_experts"] for r in report["rows"]], [5, 3, 2])
        self.assertEqual([r["experts_per_row"] for r in report["rows"]], [3, 2, 1])
        self.assertAlmostEqual(report["rows"][1]["saved"], 0.4)

    def test_csv(self):
        path = self.write("a.csv", "layer,token,experts\n0,0,0 1 2\n0,1,4;0;3\n")
        report = self.rows(path)
        self.assertEqual((report["format"], report["steps"], report["has_scores"]), ("csv", 1, False))
        self.check(report)
        self.assertAlmostEqual(report["rows"][1]["mass_kept"], 1.5 / (1 + 1 / 2 + 1 / 3))
        # One token per step: nothing is shared.
        alone = self.rows(path, "--batch", 1)
        self.assertEqual(alone["steps"], 2)
        self.assertEqual(alone["rows"][0]["distinct_experts"], 3)
        steps = self.write("b.csv", "step,layer,token,experts\n7,0,0,0 1 2\n9,0,1,4 0 3\n")
        self.assertEqual(self.rows(steps)["steps"], 2)

    def test_npy(self):
        header = b"{'descr': '<i4', 'fortran_order': False, 'shape': (2, 1, 3), }".ljust(117) + b"\n"
        data = struct.pack("<6i", *ROWS[0], *ROWS[1])
        raw = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data
        self.check(self.rows(self.write("a.npy", raw)))
        cut = run("whatif", self.write("cut.npy", raw[:-4]))
        self.assertEqual(cut.returncode, 2)
        self.assertIn("24 bytes", cut.stderr)

    def test_own(self):
        lines = [json.dumps({"record": "row", "step": 3, "layer": 0, "row": r, "phase": "decode", "vanilla": ids,
                             "best": [{"id": e, "a": a, "b": 0, "c": a} for e, a in zip(ids, (0.6, 0.3, 0.1))]})
                 for r, ids in enumerate(ROWS)]
        report = self.rows(self.write("t.jsonl", "\n".join(lines) + "\n"))
        self.check(report)
        self.assertTrue(report["has_scores"])
        self.assertAlmostEqual(report["rows"][1]["mass_kept"], 0.9, places=5)
        self.assertAlmostEqual(report["rows"][2]["worst"][0]["mass_kept"], 0.6, places=5)

    def test_bytes(self):
        path = self.write("a.csv", "0,0,0 1 2\n0,1,4 0 3\n")
        report = self.rows(path, "--shape", "glm-5", "--hardware", "h200")
        self.assertAlmostEqual(report["rows"][0]["bytes"], 5 * 3 * 6144 * 2048 * 0.5625)
        self.assertGreater(report["rows"][0]["us"], report["rows"][1]["us"])

    def test_bad_traces(self):
        for name, text, word in (("a", "0,0,1 1\n", "twice"), ("b", "0,zero,1 2\n", "line 1"),
                                 ("c", "a,b,c\n", "layer"), ("d", "", "no routed rows"),
                                 ("e", "{\"record\": \"step\"}\n", "level 2"), ("f", "{broken\n", "line 1"),
                                 ("g", "0,0,-5\n", "expert ids")):
            result = run("whatif", self.write(name, text))
            self.assertEqual(result.returncode, 2, (name, result.stdout, result.stderr))
            self.assertIn(word, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertEqual(run("whatif", "/no/such/trace").returncode, 2)
        path = self.write("a.csv", "0,0,0 1 2\n0,1,4 0 3\n")
        self.assertIn("--experts", run("whatif", path, "--experts", 3).stderr)
        self.assertIn("k0", run("whatif", path, "--routing", "oea:k0=9").stderr)


if __name__ == "__main__":
    unittest.main()
