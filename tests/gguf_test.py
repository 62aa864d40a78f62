"""GGUF files as MODEL, carpool convert and carpool logits: the bundled model there and back, and files that are broken."""
import array
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

CARPOOL = os.environ["CARPOOL"]
BUNDLED = pathlib.Path(__file__).resolve().parent.parent / "models" / "books-20m"
TEXT = "It was the best of times, it was the"


def run(*args, text=None):
    return subprocess.run([CARPOOL, *map(str, args)], capture_output=True, text=True, timeout=240, input=text)


class Gguf(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.file = cls.folder / "books.gguf"
        result = run("convert", BUNDLED, cls.file, "--type", "f32", "--json")
        assert result.returncode == 0, result.stderr
        cls.report = json.loads(result.stdout)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def ok(self, *args, text=None):
        result = run(*args, text=text)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_convert_compares_the_logits(self):
        check = self.report["check"]
        self.assertLess(check["max_difference"], 1e-3)  # bf16 weights of attention are exact, kv_b is fp32 here
        self.assertGreater(check["same_top"], 0.99)
        self.assertEqual(self.report["bytes"], self.file.stat().st_size)

    def test_info_says_the_same_of_both(self):
        file, folder = (json.loads(self.ok("info", path, "--json")) for path in (self.file, BUNDLED))
        for key in ("model_type", "parameters", "num_layers", "num_experts", "top_k", "vocab_size", "context", "eos_token_ids"):
            self.assertEqual(file[key], folder[key], key)
        self.assertEqual(file["unused_tensors"], [])
        self.assertIn("books.gguf", self.ok("info", self.file))

    def test_generate_and_perplexity(self):
        outputs = [self.ok("generate", path, "--prompt", TEXT, "--max-tokens", 12, "--temperature", 0) for path in (self.file, BUNDLED)]
        self.assertEqual(*outputs)
        text = self.folder / "text.txt"
        text.write_text((BUNDLED / "heldout.txt").read_text(encoding="utf-8")[:4000], encoding="utf-8")
        args = ("--text", text, "--batch", 1, "--context", 64, "--json")
        file, folder = (json.loads(self.ok("perplexity", path, *args)) for path in (self.file, BUNDLED))
        self.assertAlmostEqual(file["cross_entropy"], folder["cross_entropy"], places=3)

    def test_back_to_a_folder(self):
        back = self.folder / "back"
        check = json.loads(self.ok("convert", self.file, back, "--json"))["check"]
        self.assertLess(check["max_difference"], 1e-5)
        tokens = [json.loads((path / "config.json").read_text())["eos_token_id"] for path in (back, BUNDLED)]
        self.assertEqual(tokens[0], tokens[1] if isinstance(tokens[1], list) else [tokens[1]])
        outputs = [self.ok("generate", path, "--prompt", TEXT, "--max-tokens", 8, "--temperature", 0) for path in (back, BUNDLED)]
        self.assertEqual(*outputs)
        again = run("convert", self.file, back)
        self.assertEqual(again.returncode, 2)
        self.assertIn("wanted a new or empty directory", again.stderr)

    def test_four_bit_floats_stay(self):
        small = self.folder / "small.gguf"
        self.ok("convert", BUNDLED, small, "--no-check")
        kinds = json.loads(self.ok("info", small, "--json"))["tensor_bytes"]
        self.assertIn("nvfp4", kinds)
        self.assertLess(small.stat().st_size, self.file.stat().st_size / 2)

    def test_logits_of_given_tokens(self):
        tokens, out = self.folder / "tokens.json", self.folder / "logits.f32"
        tokens.write_text("[[1, 2, 3], [4, 5]]")
        for path in (self.file, BUNDLED):
            self.ok("logits", path, "--tokens", tokens, "--out", out)
            rows = array.array("f", out.read_bytes())
            self.assertEqual(len(rows), 5 * 4096)
            self.assertTrue(all(abs(x) < 1e3 for x in rows))
        for bad in ("[]", "[[]]", "[[4096]]", "[[-1]]", "[[1.5]]", "{", '["a"]'):
            tokens.write_text(bad)
            self.refused("logits", self.file, "--tokens", tokens, "--out", out)

    def refused(self, *args):
        result = run(*args)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("carpool: "), result.stderr)
        return result.stderr

    def test_broken_files(self):
        data = self.file.read_bytes()
        bad = self.folder / "bad.gguf"
        for size in (0, 3, 20, 1000, len(data) // 2, len(data) - 1):
            bad.write_bytes(data[:size])
            for command in ("info", "generate", "perplexity"):
                self.refused(command, bad)
        bad.write_bytes(data[:8] + struct.pack("<Q", 2**63) + data[16:])
        self.assertIn("tensor descriptions", self.refused("info", bad))
        bad.write_bytes(data.replace(b"glm-dsa", b"gemma99"))
        self.assertIn("'gemma99' is not supported; supported: glm-dsa", self.refused("info", bad))
        bad.write_bytes(data.replace(b"token_embd.weight", b"token_embd.weighs"))
        self.assertIn("vocab_size", self.refused("info", bad))
        part = self.folder / "m-00001-of-00002.gguf"
        key = b"general.quantization_version"
        entry = struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, 2)
        split = struct.pack("<Q", 11) + b"split.count" + struct.pack("<II", 4, 2)
        self.assertIn(entry, data)
        padding = len(entry) - len(split) - 8 - 1 - 4 - 4
        split += struct.pack("<Q", 1 + padding) + b"p" * (1 + padding) + struct.pack("<II", 4, 0)
        head = data.replace(entry, split)
        part.write_bytes(head[:16] + struct.pack("<Q", struct.unpack("<Q", head[16:24])[0] + 1) + head[24:])
        self.assertIn("m-00002-of-00002.gguf: no such file; it is part 2 of 2", self.refused("info", part))

    def test_bad_conversions(self):
        self.assertIn("wanted a name that ends in .gguf", self.refused("convert", BUNDLED, self.folder / "x"))
        self.assertIn("--type: wanted f32", self.refused("convert", BUNDLED, self.folder / "x.gguf", "--type", "q9"))
        self.assertIn("no such", self.refused("convert", self.folder / "nothing", self.folder / "x.gguf"))
        self.assertIn("q8_0", self.refused("convert", self.file, self.folder / "x", "--type", "q8_0"))
        self.assertFalse((self.folder / "x.gguf").exists())


if __name__ == "__main__":
    unittest.main()
