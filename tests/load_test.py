"""Loading a model: the panel cache beside the checkpoint, and memory that is not there."""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest

CARPOOL = os.environ["CARPOOL"]
BUNDLED = pathlib.Path(__file__).resolve().parent.parent / "models" / "books-20m"


def generate(model, *args):
    result = subprocess.run([CARPOOL, "generate", str(model), "--prompt", "It was", "--max-tokens", "8", "--temperature", "0",
                             "--threads", "1", "--activations", "q8", "--json", *args],
                            capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["outputs"], [line for line in result.stderr.splitlines() if "carpool.panels" in line]


class PanelCache(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = pathlib.Path(folder.name) / "model"
        shutil.copytree(BUNDLED, self.model)
        self.panels = self.model / "carpool.panels"

    def test_is_used_and_replaced_with_one_warning_when_it_does_not_fit(self):
        wanted, lines = generate(self.model)
        self.assertFalse(self.panels.exists())
        self.assertEqual(generate(self.model, "--panel-cache"), (wanted, []))
        made = self.panels.stat().st_mtime_ns
        self.assertEqual(generate(self.model, "--panel-cache"), (wanted, []))
        self.assertEqual(self.panels.stat().st_mtime_ns, made, "it was written again")

        damaged = bytearray(self.panels.read_bytes())
        good = bytes(damaged)
        damaged[len(damaged) // 2] ^= 0x10
        self.panels.write_bytes(damaged)
        outputs, lines = generate(self.model, "--panel-cache")
        self.assertEqual(outputs, wanted)
        self.assertEqual(len(lines), 1, lines)
        self.assertEqual(self.panels.read_bytes(), good)

        weights = sorted(self.model.glob("*.safetensors"))[0]
        os.utime(weights, ns=(1, 1))
        outputs, lines = generate(self.model, "--panel-cache")
        self.assertEqual(outputs, wanted)
        self.assertEqual(len(lines), 1, lines)
        self.assertEqual(generate(self.model, "--panel-cache"), (wanted, []))
        self.assertEqual([f.name for f in self.model.glob("carpool.panels*")], ["carpool.panels"])


class Memory(unittest.TestCase):
    def test_what_does_not_fit_is_said_before_packing(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder)
            shutil.copy(BUNDLED / "config.json", model)
            tensor_bytes = 1 << 40  # a hole in the file, nothing on the disk
            header = json.dumps({"model.embed_tokens.weight": {
                "dtype": "BF16", "shape": [tensor_bytes // 512, 256], "data_offsets": [0, tensor_bytes]}}).encode()
            with open(model / "model.safetensors", "wb") as f:
                f.write(struct.pack("<Q", len(header)) + header)
                f.truncate(8 + len(header) + tensor_bytes)
            result = subprocess.run([CARPOOL, "generate", str(model), "--prompt", "x"], capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertEqual(result.stdout, "")
            self.assertIn("1099.5 GB", result.stderr)
            self.assertIn("are free", result.stderr)


if __name__ == "__main__":
    unittest.main()
