"""carpool quantize: what it writes, that it resumes, and that an interrupted run leaves nothing that loads."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

CARPOOL = os.environ["CARPOOL"]
BUNDLED = pathlib.Path(__file__).resolve().parent.parent / "models" / "books-20m"
ARGS = ["--experts", "mxfp4", "--dense", "fp8", "--keep", "shared_experts", "--shard-megabytes", "1", "--threads", "1", "--json"]


def command(target, *args):
    return [CARPOOL, "quantize", str(BUNDLED), str(target), *args]


def run(target, *args):
    return subprocess.run(command(target, *args), capture_output=True, text=True, timeout=240)


class Quantize(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_writes_resumes_and_never_leaves_half_a_checkpoint(self):
        whole = self.folder / "whole"
        result = run(whole, *ARGS)
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual({(k["part"], k["from"], k["to"]) for k in report["kinds"]},
                         {("experts", "nvfp4", "mxfp4"), ("dense", "bf16", "fp8")})
        for kind in report["kinds"]:
            self.assertLess(kind["rmse"], 0.15)
            self.assertLess(kind["bytes_after"], kind["bytes_before"])
        index = json.loads((whole / "model.safetensors.index.json").read_text())["weight_map"]
        self.assertIn("model.layers.1.mlp.experts.0.gate_proj.weight_packed", index)
        self.assertIn("model.layers.1.self_attn.o_proj.weight_scale_inv", index)
        self.assertNotIn("model.layers.1.mlp.shared_experts.up_proj.weight_scale_inv", index)
        self.assertFalse((whole / "quantize.unfinished.json").exists())

        part = self.folder / "part"
        process = subprocess.Popen(command(part, *ARGS), stdout=subprocess.DEVNULL)
        while process.poll() is None and not list(part.glob("model-*.safetensors")):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if (part / "model.safetensors.index.json").exists():
            self.skipTest("finished before it could be interrupted")
        loaded = subprocess.run([CARPOOL, "info", str(part)], capture_output=True, text=True, timeout=60)
        self.assertEqual(loaded.returncode, 2)
        other = run(part, *ARGS[:2])
        self.assertEqual(other.returncode, 2)
        self.assertIn("unfinished run", other.stderr)
        resumed = run(part, *ARGS)
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertGreaterEqual(json.loads(resumed.stdout)["shards_kept"], 1)
        for file in whole.iterdir():
            self.assertEqual((part / file.name).read_bytes(), file.read_bytes(), file.name)

    def test_int8_loads_and_keeps_the_text_s_cross_entropy(self):
        text = self.folder / "text.txt"
        text.write_text((BUNDLED / "heldout.txt").read_text()[:20000])
        target = self.folder / "q8"
        result = run(target, "--experts", "q8", "--dense", "q8", "--threads", "2", "--text", str(text), "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        kinds = {(k["part"], k["to"]): k for k in report["kinds"]}
        self.assertEqual(set(kinds), {("experts", "q8"), ("dense", "q8")})
        self.assertLess(kinds["dense", "q8"]["rmse"], 0.008)
        self.assertLess(abs(report["cross_entropy"]["change"]), 0.01)
        info = subprocess.run([CARPOOL, "info", str(target), "--json"], capture_output=True, text=True, timeout=60)
        self.assertGreater(json.loads(info.stdout)["tensor_bytes"]["q8"], 1_000_000)

    def test_bad_input(self):
        used = self.folder / "used"
        used.mkdir()
        (used / "mine.txt").write_text("x")
        for args, words in [
            ((used,), ["empty directory"]),
            ((self.folder / "a", "--experts", "q5"), ["--experts", "nvfp4", "q8", "q5"]),
            ((self.folder / "b", "--keep", "("), ["--keep"]),
        ]:
            with self.subTest(args=args):
                result = run(*args)
                self.assertEqual(result.returncode, 2)
                self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)
        self.assertEqual([f.name for f in used.iterdir()], ["mine.txt"])


if __name__ == "__main__":
    unittest.main()
