#!/usr/bin/env python3
"""The program from outside: JSON keys, environment, and one clear line with exit code 2 for every bad input."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

CARPOOL = os.environ.get("CARPOOL", "build/release/carpool")
ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models/books-20m"
PROMPT = "It was a dark and stormy night, and the old man"


def run(*args, env=None, stdin=None, text=True):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CARPOOL_", "SGLANG_"))}
    environment.update(env or {})
    return subprocess.run([CARPOOL, *args], capture_output=True, text=text, env=environment, input=stdin, timeout=300)


def run_json(*args, env=None):
    result = run(*args, "--json", env=env)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


class Commands(unittest.TestCase):
    def test_generate_is_one_batch_and_reproducible(self):
        golden = json.loads((MODEL / "golden/greedy.json").read_text())
        args = ["generate", "--temperature", "0", "--max-tokens", "24", "--threads", "1"]
        for entry in golden:
            args += ["--prompt", entry["prompt"]]
        document = run_json(*args)
        self.assertEqual(len(document["outputs"]), len(golden))
        for entry, output in zip(golden, document["outputs"]):
            self.assertEqual(output["prompt"], entry["prompt"])
            self.assertEqual(output["token_ids"], entry["ids"][:24])
            self.assertEqual(output["finish_reason"], "length")
            self.assertTrue(entry["text"].startswith(output["text"]))
        self.assertEqual(document["stats"]["routing"], "vanilla")
        self.assertGreater(document["stats"]["distinct_experts_mean"], 8)

    def test_sampling_depends_on_the_seed_and_not_on_batch_mates(self):
        sample = ["generate", "--temperature", "0.9", "--max-tokens", "16", "--threads", "1", "--seed"]
        alone = run_json(*sample, "7", "--prompt", PROMPT)["outputs"][0]["token_ids"]
        other = run_json(*sample, "8", "--prompt", PROMPT)["outputs"][0]["token_ids"]
        batch = run_json(*sample, "7", "--prompt", PROMPT, "--prompt", "The captain said", "--prompt", "Once")
        self.assertEqual(batch["outputs"][0]["token_ids"], alone)
        self.assertNotEqual(alone, other)

    def test_prompt_file_and_human_output(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "prompt.txt"
            path.write_text(PROMPT + "\n")
            result = run("generate", "--prompt-file", str(path), "--max-tokens", "4", "--temperature", "0")
        self.assertEqual(result.returncode, 0)
        self.assertTrue(result.stdout.startswith(PROMPT))
        self.assertIn("tokens/s", result.stderr)

    def test_trace_of_a_running_engine(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace.jsonl"
            result = run("generate", "--prompt", PROMPT, "--prompt", "The captain said", "--max-tokens", "5",
                         "--temperature", "0", "--routing", "oea:k0=3", "--trace", str(path), "--trace-level", "2")
            self.assertEqual(result.returncode, 0, result.stderr)
            lines = [json.loads(line) for line in path.read_text().splitlines()]
        self.assertGreater(len(lines), 5 * 4)
        self.assertIn("oea:k0=3", json.dumps(lines))

    def test_chat_uses_the_template_and_ends_with_its_input(self):
        result = run("chat", "--temperature", "0", "--max-tokens", "12", "--json", stdin="Who are you?\n/reset\nGo on.\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        turns = json.loads(result.stdout)["turns"]
        self.assertEqual(len(turns), 2)
        self.assertTrue(all(len(t["token_ids"]) > 0 for t in turns))

    def test_perplexity_keys_and_definition(self):
        document = run_json("perplexity", "--windows", "1", "--batch", "4", "--context", "64", "--threads", "1")
        self.assertEqual(document["tokens"], 4 * 64)
        self.assertEqual(document["routing"], "vanilla")
        self.assertEqual(document["experts_per_row_mean"], 8)
        self.assertEqual(set(document) & {"tokens", "cross_entropy", "bits_per_byte", "distinct_experts_mean",
                                          "experts_per_row_mean", "routing"},
                         {"tokens", "cross_entropy", "bits_per_byte", "distinct_experts_mean", "experts_per_row_mean",
                          "routing"})

    def test_bench_decode_keys(self):
        document = run_json("bench", "decode", "--batch", "1,3", "--routing", "vanilla,oea:k0=3", "--steps", "3",
                            "--context", "8", "--threads", "1")
        self.assertEqual([(r["batch"], r["routing"]) for r in document["rows"]],
                         [(1, "vanilla"), (1, "oea:k0=3"), (3, "vanilla"), (3, "oea:k0=3")])
        for row in document["rows"]:
            self.assertGreater(row["us_median"], 0)
            self.assertLessEqual(row["us_p10"], row["us_p90"])

    def test_every_command_has_help(self):
        listing = run("--help")
        self.assertEqual(listing.returncode, 0)
        commands = [line.split()[0] for line in listing.stdout.split("Subcommands:")[1].splitlines() if line.strip()]
        self.assertGreaterEqual(len(commands), 6)
        for command in commands:
            result = run(command, "--help")
            self.assertEqual(result.returncode, 0, command)
            self.assertIn("Usage", result.stdout)


class Routing(unittest.TestCase):
    BASE = ["perplexity", "--windows", "1", "--batch", "4", "--context", "16", "--threads", "1"]

    def routing(self, env, *flags):
        return run_json(*self.BASE, *flags, env=env)["routing"]

    def test_flag_beats_environment_and_the_first_variable_wins(self):
        self.assertEqual(self.routing({}), "vanilla")
        self.assertEqual(self.routing({"SGLANG_OEA_K0": "3"}), "oea:k0=3")
        self.assertEqual(self.routing({"CARPOOL_OEA_K0": "4", "SGLANG_OEA_K0": "3"}), "oea:k0=4")
        self.assertEqual(self.routing({"CARPOOL_ROUTING": "topk:k=5", "CARPOOL_OEA_K0": "4"}), "topk:k=5")
        self.assertEqual(self.routing({"CARPOOL_ROUTING": "topk:k=5"}, "--routing", "oea:k0=2"), "oea:k0=2")
        self.assertEqual(self.routing({"CARPOOL_ROUTING": "", "SGLANG_OEA_K0": "0"}), "vanilla")

    def test_neutral_settings_change_nothing(self):
        exact = run_json(*self.BASE)
        for policy in ["oea:k0=8", "topk:k=8"]:
            neutral = run_json(*self.BASE, "--routing", policy)
            self.assertEqual(neutral["cross_entropy"], exact["cross_entropy"], policy)
            self.assertEqual(neutral["distinct_experts_mean"], exact["distinct_experts_mean"], policy)


class BadInput(unittest.TestCase):
    def fails(self, *args, want, env=None, code=2):
        result = run(*args, env=env)
        self.assertEqual(result.returncode, code, f"{args}: {result.stderr}")
        self.assertEqual(result.stdout, "", args)
        lines = result.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertIn(want, lines[0])

    def generate(self, *args, want, **more):
        self.fails("generate", "--prompt", "Hello", "--max-tokens", "2", *args, want=want, **more)

    def test_arguments(self):
        self.fails(want="subcommand")
        self.fails("fly", want="fly")
        self.generate("--no-such-flag", want="--no-such-flag")
        self.fails("generate", want="--prompt")
        self.generate("/no/such/model", want="/no/such/model")
        self.fails("generate", "--prompt", "x", "--max-tokens", "0", want="max-tokens")
        self.fails("generate", "--prompt", "x", "--max-tokens", "many", want="max-tokens")

    def test_threads(self):
        for threads in ["0", "10000", "-1"]:
            self.generate("--threads", threads, want="--threads")
        self.generate("--threads", "two", want="--threads")

    def test_prompts(self):
        self.fails("generate", "--prompt", "", want="empty")
        self.fails("generate", "--prompt", "word " * 4000, "--max-tokens", "4", want="context")
        self.fails("generate", "--prompt", "x", "--max-tokens", "3000", want="context")
        self.fails("generate", "--prompt-file", "/no/such/file", want="/no/such/file")
        self.fails("generate", "--prompt-file", "/", want="directory")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "prompt"
            path.write_bytes(b"ok \xff\xfe")
            self.fails("generate", "--prompt-file", str(path), want="UTF-8")

    def test_sampling(self):
        for flag, value in [("--temperature", "-1"), ("--temperature", "nan"), ("--top-p", "0"), ("--top-p", "1.5"),
                            ("--top-k", "-3"), ("--min-p", "2"), ("--repetition-penalty", "0"),
                            ("--presence-penalty", "9")]:
            self.generate(flag, value, want=flag.strip("-").replace("-", "_"))

    def test_policies(self):
        self.generate("--routing", "tpk", want="tpk")
        self.generate("--routing", "oea:k0=3,speed=9", want="speed")
        self.generate("--routing", "oea:k0=0", want="k0")
        self.generate("--routing", "oea:k0=9", want="k0")
        self.generate("--routing", "oea:k0=three", want="k0")
        self.generate("--routing", "topk:k=99", want="k")
        self.generate(want="CARPOOL_ROUTING", env={"CARPOOL_ROUTING": "nonsense"})
        self.generate(want="SGLANG_OEA_K0", env={"SGLANG_OEA_K0": "three"})

    def test_perplexity(self):
        self.generate("--trace", "/no/such/folder/trace", want="/no/such/folder/trace")
        self.fails("perplexity", "--text", "/no/such/file", want="/no/such/file")
        self.fails("perplexity", "--batch", "0", want="batch")
        self.fails("perplexity", "--context", "999999", want="context")
        self.fails("perplexity", "--windows", "999", want="windows")
        self.fails("perplexity", "--activations", "f64", want="activations")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "short.txt"
            path.write_text("Too short.")
            self.fails("perplexity", "--text", str(path), want="tokens")

    def test_unwritable_output(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([CARPOOL, "info", "--json"], stdout=full, stderr=subprocess.PIPE, text=True,
                                    timeout=60)
        self.assertEqual(result.returncode, 2)
        self.assertIn("written", result.stderr)

    def broken(self, change, want, command=("generate", "--prompt", "Hello", "--max-tokens", "2")):
        """A copy of the bundled model (weights linked, small files copied) after `change(folder)`."""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder) / "model"
            folder.mkdir()
            for name in ["config.json", "generation_config.json", "hf_quant_config.json", "tokenizer.json",
                         "tokenizer_config.json", "chat_template.jinja"]:
                shutil.copy(MODEL / name, folder / name)
            shutil.copy(MODEL / "model.safetensors", folder / "model.safetensors")
            change(folder)
            self.fails(*command, str(folder), want=want)

    @staticmethod
    def config(**changes):
        def change(folder):
            config = json.loads((folder / "config.json").read_text())
            config.update(changes)
            (folder / "config.json").write_text(json.dumps(config))
        return change

    def test_missing_files(self):
        self.broken(lambda f: (f / "config.json").unlink(), "config.json")
        self.broken(lambda f: (f / "model.safetensors").unlink(), "safetensors")
        self.broken(lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json")
        self.broken(lambda f: (f / "chat_template.jinja").unlink(), "template", command=("chat",))

    def test_configs(self):
        self.broken(self.config(model_type="glm9"), "glm9")
        self.broken(self.config(num_experts_per_tok=200), "num_experts_per_tok")
        self.broken(self.config(n_group=5), "n_group")
        self.broken(self.config(hidden_size=0), "hidden_size")
        self.broken(self.config(num_hidden_layers=-1), "num_hidden_layers")
        self.broken(self.config(n_routed_experts=2**31), "n_routed_experts")
        self.broken(self.config(rope_parameters={"rope_theta": 0, "rope_type": "default"}), "rope_theta")
        self.broken(self.config(vocab_size=100), "")
        self.broken(self.config(eos_token_id=[99999]), "eos_token_id")
        self.broken(lambda f: (f / "config.json").write_text("{"), "config.json")

    def test_tokenizers(self):
        def edit(change):
            def apply(folder):
                document = json.loads((folder / "tokenizer.json").read_text())
                change(document)
                (folder / "tokenizer.json").write_text(json.dumps(document))
            return apply
        self.broken(edit(lambda d: d["model"].update(type="Unigram")), "Unigram")
        self.broken(edit(lambda d: d["model"]["merges"].append(["qqq", "zzz"])), "merge")
        self.broken(edit(lambda d: d["model"]["vocab"].update(extra=2**31)), "tokenizer.json")
        self.broken(lambda f: (f / "tokenizer.json").write_text("[]"), "tokenizer.json")

    def test_weights(self):
        def truncate(folder):
            path = folder / "model.safetensors"
            os.truncate(path, path.stat().st_size - 1000)
        self.broken(truncate, "model.safetensors")

        def garbage(folder):
            with open(folder / "model.safetensors", "ab") as f:
                f.write(b"garbage!")
        self.broken(garbage, "model.safetensors")

        def nan_scale(folder):
            path = folder / "model.safetensors"
            data = bytearray(path.read_bytes())
            n = int.from_bytes(data[:8], "little")
            header = json.loads(data[8:8 + n])
            begin, _ = header["model.layers.1.mlp.experts.0.gate_proj.weight_scale"]["data_offsets"]
            data[8 + n + begin] = 0x7F
            path.write_bytes(data)
        self.broken(nan_scale, "model.layers.1.mlp.experts.0.gate_proj")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
