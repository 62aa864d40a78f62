#!/usr/bin/env python3
"""Every family through the program: info, generate, perplexity and bench decode on tiny checkpoints of random weights.

Configurations, tensor names and shapes are those that transformers saved (tests/golden/transformers); only the vocabulary
is the bundled tokenizer's.
"""
import array
import json
import math
import os
import pathlib
import random
import shutil
import struct
import subprocess
import tempfile
import unittest

CARPOOL = os.environ.get("CARPOOL", "build/release/carpool")
ROOT = pathlib.Path(__file__).resolve().parent.parent
BUNDLED = ROOT / "models/books-20m"
GOLDENS = sorted((ROOT / "tests/golden/transformers").glob("*.json"))
VOCAB = 4096
DENSE = {"llama", "qwen3"}


def run(*args):
    result = subprocess.run([CARPOOL, *map(str, args), "--json"], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, f"{args}: {result.stderr}"
    return json.loads(result.stdout)


class Writer:
    def __init__(self):
        self.header, self.data = {}, bytearray()
        self.noise = random.Random(1)
        self.pool = [self.noise.uniform(-1, 1) for _ in range(4099)]  # reused: a million uniform() calls take seconds

    def add(self, name, dtype, shape, data):
        self.header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(self.data), len(self.data) + len(data)]}
        self.data += data

    def weights(self, name, shape):
        n = math.prod(shape)
        first = self.noise.randrange(len(self.pool))
        values = array.array("f", (self.pool[(first + i) % len(self.pool)] for i in range(n)))
        scale = 1.0 if name.endswith("norm.weight") else 2.0 / math.sqrt(shape[-1])
        if name.endswith("norm.weight"):
            values = array.array("f", (1 + 0.1 * v for v in values))
        else:
            values = array.array("f", (scale * v for v in values))
        self.add(name, "F32", shape, values.tobytes())

    def mxfp4(self, name, experts, rows, inputs):
        """As gpt-oss stores its experts: [experts, rows, inputs / 32, 16] codes and one exponent per 32 inputs."""
        self.add(name + "_blocks", "U8", [experts, rows, inputs // 32, 16],
                 self.noise.randbytes(experts * rows * inputs // 2))
        self.add(name + "_scales", "U8", [experts, rows, inputs // 32],
                 bytes(self.noise.choice((122, 123, 124)) for _ in range(experts * rows * inputs // 32)))

    def save(self, folder):
        text = json.dumps(self.header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + self.data)


def write_checkpoint(golden, folder, mxfp4=False):
    config = dict(golden["config"], vocab_size=VOCAB, eos_token_id=4088)
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(BUNDLED / "tokenizer.json", folder)
    writer = Writer()
    for name, shape in golden["tensors"].items():
        shape = [VOCAB if d == 320 else d for d in shape]
        if mxfp4 and name.endswith("experts.gate_up_proj"):
            writer.mxfp4(name, shape[0], shape[2], shape[1])
        elif mxfp4 and name.endswith("experts.down_proj"):
            writer.mxfp4(name, shape[0], shape[2], shape[1])
        else:
            writer.weights(name, shape)
    writer.save(folder)
    return config


class Families(unittest.TestCase):
    def check(self, golden, mxfp4=False):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="carpool-family-"))
        self.addCleanup(shutil.rmtree, folder)
        config = write_checkpoint(golden, folder, mxfp4)
        dense = config["model_type"] in DENSE
        info = run("info", folder)
        self.assertEqual(info["model_type"], config["model_type"])
        self.assertEqual(info["num_layers"], 4)
        self.assertEqual(info["num_moe_layers"] == 0, dense)
        self.assertEqual(info["num_unused_tensors"], 0, info["unused_tensors"])
        self.assertEqual("mxfp4" in info["tensor_bytes"], mxfp4)
        self.assertGreater(info["parameters"], 100_000)
        human = subprocess.run([CARPOOL, "info", str(folder)], capture_output=True, text=True, timeout=60)
        self.assertEqual(human.returncode, 0, human.stderr)
        self.assertIn(config["model_type"], human.stdout)

        generate = ["generate", folder, "--temperature", "0", "--max-tokens", "6", "--threads", "1"]
        prompts = ["It was a dark and stormy night", "The captain said", "Once", "In the year 1801 there"]
        alone = run(*generate, "--prompt", prompts[0])["outputs"][0]["token_ids"]
        batch = [word for p in prompts for word in ("--prompt", p)]
        self.assertEqual(run(*generate, *batch)["outputs"][0]["token_ids"], alone)
        if dense:
            policies = ["vanilla"]
        else:
            policies = ["vanilla", "oea:k0=1"]
            oea = run(*generate, *batch, "--routing", "oea:k0=1")["stats"]
            self.assertGreater(oea["piggyback_rate"], 0)
        text = ["--text", BUNDLED / "heldout.txt", "--batch", "2", "--context", "12", "--windows", "1"]
        distinct = []
        for policy in policies:
            result = run("perplexity", folder, *text, "--routing", policy, "--threads", "1")
            self.assertEqual(result["tokens"], 24)
            self.assertTrue(0 < result["cross_entropy"] < 50)
            distinct.append(result["distinct_experts_mean"])
        self.assertTrue(dense or distinct[1] < distinct[0], distinct)
        rows = run("bench", "decode", folder, "--batch", "2", "--context", "8", "--steps", "3", "--routing",
                   ",".join(policies), "--threads", "1")["rows"]
        self.assertEqual(len(rows), len(policies))
        for row in rows:
            self.assertGreater(row["tokens_per_s"], 0)

    def test_goldens_cover_every_family(self):
        self.assertGreaterEqual(len(GOLDENS), 14)


def add_test(path):
    golden = json.loads(path.read_text())
    setattr(Families, f"test_{path.stem}", lambda self: self.check(golden))
    if path.stem == "gpt_oss":
        setattr(Families, "test_gpt_oss_mxfp4", lambda self: self.check(golden, mxfp4=True))


for golden_path in GOLDENS:
    add_test(golden_path)

if __name__ == "__main__":
    unittest.main()
