"""carpool info: the bundled model, and one clear line with exit code 2 for everything that cannot be loaded."""
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


def run(*args):
    return subprocess.run([CARPOOL, *map(str, args)], capture_output=True, text=True, timeout=120)


def read_header():
    data = (BUNDLED / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def file_bytes(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Bundled(unittest.TestCase):
    def test_json(self):
        result = run("info", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        info = json.loads(result.stdout)
        self.assertEqual(info["model_type"], "glm_moe_dsa")
        self.assertEqual(info["num_layers"], 6)
        self.assertEqual(info["num_moe_layers"], 5)
        self.assertEqual(info["num_experts"], 128)
        self.assertEqual(info["top_k"], 8)
        self.assertEqual(info["eos_token_ids"], [4088])
        self.assertEqual(info["warnings"], [])
        self.assertEqual(info["num_unused_tensors"], 0)
        # Recounted here from the header alone: every byte of the file but the unused input scales.
        header, _ = read_header()
        header.pop("__metadata__", None)
        sizes = {"nvfp4": 0, "bf16": 0, "f32": 0}
        for name, tensor in header.items():
            begin, end = tensor["data_offsets"]
            if name.endswith("input_scale"):
                continue
            kind = "nvfp4" if ".mlp.experts." in name else tensor["dtype"].lower()
            sizes[kind] += end - begin
        self.assertEqual(info["tensor_bytes"], sizes)
        self.assertEqual(info["total_bytes"], sum(sizes.values()))
        shapes = 0
        for name, tensor in header.items():
            if name.endswith(("scale", "scale_2")):
                continue
            count = 1
            for d in tensor["shape"]:
                count *= d
            shapes += count * (2 if tensor["dtype"] == "U8" else 1)
        self.assertEqual(info["parameters"], shapes)

    def test_human(self):
        result = run("info", BUNDLED)
        self.assertEqual(result.returncode, 0, result.stderr)
        for word in ("books-20m", "glm_moe_dsa", "20,065,664", "128 per MoE layer, top 8", "nvfp4", "bf16", "MB"):
            self.assertIn(word, result.stdout)

    def test_supported(self):
        result = run("info", "--supported", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        types = [a["model_type"] for a in json.loads(result.stdout)["supported"]]
        for one in ("glm_moe_dsa", "glm4_moe", "deepseek_v3", "qwen3_moe", "mixtral", "gpt_oss", "llama"):
            self.assertIn(one, types)
        self.assertIn("Mixtral-8x7B", run("info", "--supported").stdout)
        readme = (pathlib.Path(__file__).resolve().parent.parent / "README.md").read_text()
        for a in json.loads(result.stdout)["supported"]:
            self.assertIn(f"| `{a['model_type']}` | {a['models']} |\n", readme)

    def test_help(self):
        result = run("info", "--help")
        self.assertEqual(result.returncode, 0)
        self.assertIn("--json", result.stdout)


class Bad(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="carpool-info-"))
        self.addCleanup(shutil.rmtree, self.dir)
        shutil.copy(BUNDLED / "config.json", self.dir)

    def refused(self, *words, path=None):
        for extra in ([], ["--json"]):
            result = run("info", path or self.dir, *extra)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertEqual(result.stdout, "")
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertTrue(result.stderr.startswith("carpool: "), result.stderr)
            for word in words:
                self.assertIn(word, result.stderr)

    def link_weights(self):
        shutil.copy(BUNDLED / "model.safetensors", self.dir)

    def write(self, header, data=b""):
        (self.dir / "model.safetensors").write_bytes(file_bytes(header, data))

    def config(self, **changes):
        config = json.loads((BUNDLED / "config.json").read_text())
        config.update(changes)
        (self.dir / "config.json").write_text(json.dumps(config))

    def test_paths(self):
        self.refused("no such checkpoint directory", path=self.dir / "nowhere")
        self.refused("wanted a checkpoint directory, got a file that is not GGUF", path=self.dir / "config.json")
        self.refused("neither model.safetensors nor model.safetensors.index.json")
        (self.dir / "config.json").unlink()
        self.refused("config.json: no such file")

    def test_arguments(self):
        for args in (["info", "a", "b"], ["info", "--nonsense"], ["inform"], []):
            result = run(*args)
            self.assertEqual(result.returncode, 2, args)
            self.assertEqual(result.stdout, "")
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)

    def test_truncated(self):
        data = (BUNDLED / "model.safetensors").read_bytes()
        for size in (0, 7, 8, 1000, len(data) // 2, len(data) - 1):
            (self.dir / "model.safetensors").write_bytes(data[:size])
            self.refused("model.safetensors: ")

    def test_trailing_garbage(self):
        data = (BUNDLED / "model.safetensors").read_bytes()
        (self.dir / "model.safetensors").write_bytes(data + b"PK\3\4")
        self.refused("4 bytes follow the last tensor")

    def test_headers(self):
        one = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}
        cases = [
            (b"not json", b"", "does not start with '{'"),
            (b'{"a":', b"", "not valid JSON"),
            ({"a": one, "b": {**one, "data_offsets": [1, 3]}}, b"xyz", "overlaps"),
            ({"a": one, "b": {**one, "data_offsets": [3, 5]}}, b"vwxyz", "starts 1 bytes after"),
            ({"a": {**one, "shape": [2**63, 2]}}, b"xy", "overflows"),
            ({"a": {**one, "shape": [-2]}}, b"xy", "whole numbers"),
            ({"a": {**one, "dtype": "Q9"}}, b"xy", "unknown dtype 'Q9'"),
            ({"a": {**one, "data_offsets": [0, 2**40]}}, b"xy", "do not fit"),
            (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
             b"xy", "tensor 'a' is there twice"),
            (b'{"a\\nb":1}', b"", "a\\x0ab"),
        ]
        for header, data, word in cases:
            with self.subTest(word):
                self.write(header, data)
                self.refused(word)

    def test_oversized_header(self):
        (self.dir / "model.safetensors").write_bytes(struct.pack("<Q", 100_000_001) + b"{}")
        os.truncate(self.dir / "model.safetensors", 200_000_000)  # sparse
        self.refused("at most 100000000")

    def test_index_outside(self):
        other = pathlib.Path(tempfile.mkdtemp(prefix="carpool-info-"))
        self.addCleanup(shutil.rmtree, other)
        shutil.copy(BUNDLED / "model.safetensors", other / "x.safetensors")
        (self.dir / "link.safetensors").symlink_to(other / "x.safetensors")
        for shard, word in ((f"../{other.name}/x.safetensors", "same folder"), (f"{other}/x.safetensors", "same folder"),
                            ("link.safetensors", "outside the model's folder"),
                            ("none.safetensors", "is not in the folder")):
            (self.dir / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
            self.refused(word)

    def test_nan_scale(self):
        header, data = read_header()
        name = "model.layers.1.mlp.experts.5.up_proj.weight_scale_2"
        begin, end = header[name]["data_offsets"]
        self.write(header, data[:begin] + struct.pack("<f", float("nan")) + data[end:])
        self.refused(name + ": is nan")

    def test_missing_and_misshaped_tensors_in_one_error(self):
        header, data = read_header()
        for e in range(30):
            header[f"x{e}"] = header.pop(f"model.layers.2.mlp.experts.{e}.gate_proj.weight")
        header["model.norm.weight"]["shape"] = [2, 128]
        self.write(header, data)
        self.refused("31 tensors cannot be loaded", "model.layers.2.mlp.experts.0.gate_proj.weight: missing, wanted",
                     "and 11 more")

    def test_config_numbers(self):
        self.link_weights()
        for field, value in (("hidden_size", 0), ("num_hidden_layers", -3), ("num_hidden_layers", 10**9),
                             ("n_routed_experts", 2**31), ("num_experts_per_tok", 129), ("n_group", 3),
                             ("vocab_size", 4000), ("max_position_embeddings", 0), ("index_topk", 0),
                             ("rms_norm_eps", -1), ("rope_parameters", {"rope_theta": 0, "rope_type": "default"}),
                             ("rope_parameters", {"rope_type": "dynamic", "factor": 4}), ("hidden_act", "relu"),
                             ("eos_token_id", [1] * 1_000_000)):
            with self.subTest(field=field):
                self.config(**{field: value})
                inner = {"rope_parameters": "rope_", "vocab_size": "eos_token_id"}.get(field, field)
                self.refused(inner)

    def test_config_against_tensors(self):
        self.link_weights()
        self.config(hidden_size=512)
        self.refused("tensors cannot be loaded", "wanted", "got")
        self.config(num_hidden_layers=1024, n_routed_experts=4096)
        self.refused("tensors cannot be loaded")

    def test_model_type(self):
        self.config(model_type="gpt2", architectures=["GPT2LMHeadModel"])
        self.refused("'gpt2' is not supported; supported: glm_moe_dsa")
        self.config(model_type="glm5_next")
        self.refused("'glm5_next' is not supported")

    def test_config_text(self):
        for text in ("", "{", "[1]", '{"model_type": NaN}', "[" * 1_000_000, '{"a": 1, "a": 2}', "\xff\xfe"):
            (self.dir / "config.json").write_text(text, encoding="latin-1")
            self.refused("config.json: ")

    def test_config_disagrees_with_tensors_is_a_warning(self):
        self.link_weights()
        quant = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*"]}
        self.config(quantization_config=quant)
        result = run("info", self.dir, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        warnings = json.loads(result.stdout)["warnings"]
        self.assertEqual(len(warnings), 1)
        self.assertIn("excludes", warnings[0])


if __name__ == "__main__":
    unittest.main()
