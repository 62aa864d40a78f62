"""Clients that people use, unmodified: curl, the openai package, lm-evaluation-harness.

`make clients` installs the Python ones into build/clients; where they are missing the tests say so and skip.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from scripted_model import write_scripted_model
from serving import Server

VENV = pathlib.Path(os.environ.get("CLIENTS", pathlib.Path(__file__).resolve().parent.parent / "build" / "clients"))


def skip(what):
    print(f"\nSKIPPED: {what} is not installed (make clients); it was NOT tested", file=sys.stderr)
    raise unittest.SkipTest(f"{what} is not installed")


class Curl(unittest.TestCase):
    def test_curl(self):
        if not shutil.which("curl"):
            skip("curl")
        with Server() as server:
            url = f"http://127.0.0.1:{server.port}/v1/completions"
            out = subprocess.run(["curl", "-sSf", url, "-H", "Content-Type: application/json", "-d",
                                  '{"prompt": "It was", "max_tokens": 8}'], capture_output=True, text=True, check=True).stdout
            self.assertTrue(json.loads(out)["choices"][0]["text"])
            out = subprocess.run(["curl", "-sSfN", url, "-d", '{"prompt": "It was", "max_tokens": 8, "stream": true}'],
                                 capture_output=True, text=True, check=True).stdout
            self.assertTrue(out.endswith("data: [DONE]\n\n"))


OPENAI = r"""
import asyncio, sys
import openai
base = sys.argv[1]
client = openai.OpenAI(base_url=base, api_key="secret")
assert [m.id for m in client.models.list()] == ["books-20m"]
c = client.completions.create(model="books-20m", prompt="It was", max_tokens=8, temperature=0, logprobs=2)
assert c.choices[0].text and c.usage.completion_tokens == 8 and len(c.choices[0].logprobs.tokens) == 8
parts = list(client.completions.create(model="books-20m", prompt="It was", max_tokens=8, temperature=0, stream=True,
                                       stream_options={"include_usage": True}))
assert "".join(p.choices[0].text for p in parts if p.choices) == c.choices[0].text
assert parts[-1].usage.completion_tokens == 8
messages = [{"role": "user", "content": "Who are you?"}]
chat = client.chat.completions.create(model="books-20m", messages=messages, max_tokens=12, temperature=0,
                                      logprobs=True, top_logprobs=3, extra_body={"moe": {"routing": "exact"}})
assert chat.choices[0].message.content and len(chat.choices[0].logprobs.content[0].top_logprobs) == 3
assert chat.usage.moe["routing"] == "vanilla"
parts = client.chat.completions.create(model="books-20m", messages=messages, max_tokens=12, temperature=0, stream=True)
assert "".join(p.choices[0].delta.content or "" for p in parts) == chat.choices[0].message.content
tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
client.chat.completions.create(model="books-20m", messages=messages, max_tokens=4, tools=tools)
for wrong, error in ((dict(max_tokens=10**6), openai.BadRequestError), (dict(model="x"), openai.NotFoundError)):
    try:
        client.completions.create(**{**dict(model="books-20m", prompt="x"), **wrong})
        raise SystemExit("no error")
    except error as e:
        assert e.body["message"]
try:
    openai.OpenAI(base_url=base, api_key="wrong").models.list()
    raise SystemExit("no error")
except openai.AuthenticationError:
    pass

async def many():
    a = openai.AsyncOpenAI(base_url=base, api_key="secret")
    async def one():
        stream = await a.completions.create(model="books-20m", prompt="It was", max_tokens=8, temperature=0, stream=True)
        return "".join([p.choices[0].text async for p in stream])
    assert set(await asyncio.gather(*[one() for _ in range(16)])) == {c.choices[0].text}
asyncio.run(many())
print("openai", openai.__version__, "ok")
"""


# The round an agent makes: a call, its result, an answer; on the scripted fixture model (scripted_model.py).
TOOLS = r"""
import json, sys
import openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="none")
model = next(iter(client.models.list())).id
tools = [{"type": "function", "function": {"name": "get_weather", "description": "weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
messages = [{"role": "user", "content": "How is the weather in Paris?"}]
first = client.chat.completions.create(model=model, messages=messages, tools=tools, max_tokens=64).choices[0]
assert first.finish_reason == "tool_calls", first
[call] = first.message.tool_calls
assert (call.type, call.function.name, json.loads(call.function.arguments)) == ("function", "get_weather", {"city": "Paris"}), call
name, arguments, finish = "", "", None
for part in client.chat.completions.create(model=model, messages=messages, tools=tools, max_tokens=64, stream=True):
    for piece in part.choices[0].delta.tool_calls or []:
        name += piece.function.name or ""
        arguments += piece.function.arguments or ""
    finish = part.choices[0].finish_reason or finish
assert (name, json.loads(arguments), finish) == ("get_weather", {"city": "Paris"}, "tool_calls"), (name, arguments, finish)
messages += [first.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
answer = client.chat.completions.create(model=model, messages=messages, tools=tools, max_tokens=64).choices[0]
assert answer.finish_reason == "stop" and answer.message.content, answer
print("ok")
"""


class Python(unittest.TestCase):
    def run_openai(self, script, server):
        python = VENV / "bin" / "python"
        result = subprocess.run([python, "-c", script, f"http://127.0.0.1:{server.port}/v1"],
                                capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("ok", result.stdout)

    def require_openai(self):
        python = VENV / "bin" / "python"
        if not python.exists() or subprocess.run([python, "-c", "import openai"], capture_output=True).returncode:
            skip("the openai package")

    def test_openai(self):
        self.require_openai()
        with Server("--api-key", "secret") as server:
            self.run_openai(OPENAI, server)

    def test_openai_tools(self):
        self.require_openai()
        with tempfile.TemporaryDirectory() as folder, Server(model=write_scripted_model(folder + "/scripted")) as server:
            self.run_openai(TOOLS, server)

    def test_lm_eval(self):
        program = VENV / "bin" / "lm_eval"
        if not program.exists():
            skip("lm-evaluation-harness")
        with tempfile.TemporaryDirectory() as folder, Server() as server:
            docs = pathlib.Path(folder) / "docs.jsonl"
            docs.write_text("".join(json.dumps({"text": t}) + "\n" for t in
                                    ("It was a fine day.", "She said nothing at all.", "The hound ran over the moor.")))
            (pathlib.Path(folder) / "books.yaml").write_text(
                "task: books\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: " + str(docs) +
                "\noutput_type: loglikelihood_rolling\ntest_split: test\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
                "metric_list:\n  - metric: bits_per_byte\n")
            args = (f"model=books-20m,base_url=http://127.0.0.1:{server.port}/v1/completions,tokenizer_backend=huggingface,"
                    f"tokenizer={pathlib.Path(__file__).resolve().parent.parent / 'models' / 'books-20m'},max_length=512")
            result = subprocess.run([program, "--model", "local-completions", "--model_args", args, "--tasks", "books",
                                     "--include_path", folder], capture_output=True, text=True, timeout=300,
                                    env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"})
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertIn("bits_per_byte", result.stdout)


if __name__ == "__main__":
    unittest.main()
