"""carpool serve: routing as a client's choice, chat, the prefix cache."""
import json
import pathlib
import shutil
import struct
import tempfile
import unittest

from serving import BUNDLED, Server, parallel

PROMPT = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of"


class Routing(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--routing", "oea:k0=2")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def batch(self, n=8, **fields):
        starts = ["The", "A", "Mr.", "It", "When", "She", "But", "There", "One", "On", "In", "They"][:n]
        return parallel([lambda s=s: self.server.complete(s, max_tokens=40, ignore_eos=True, **fields) for s in starts])

    def test_the_default_is_shown_and_acts(self):
        model = json.loads(self.server.get("/v1/models")[1])["data"][0]
        self.assertEqual(model["routing"], "oea:k0=2,min_rows=4")
        moe = [a["usage"]["moe"] for a in self.batch()]
        self.assertTrue(any(m["piggyback_rate"] > 0.1 for m in moe))
        self.assertTrue(all(m["batch_dependent"] for m in moe))
        self.assertIn("carpool:routing_info", self.server.get("/metrics")[1])

    def test_exact_requests_equal_their_solo_runs(self):
        exact = {"moe": {"routing": "exact"}}
        alone = self.server.complete(PROMPT, max_tokens=40, **exact)
        self.assertEqual(alone["usage"]["moe"]["routing"], "vanilla")
        self.assertFalse(alone["usage"]["moe"]["batch_dependent"])
        runs = parallel([lambda: self.server.complete(PROMPT, max_tokens=40, **exact)]
                        + [lambda s=s: self.server.complete(s, max_tokens=40) for s in ("The", "Mr.", "It", "On", "A")])
        self.assertEqual(runs[0]["choices"][0]["text"], alone["choices"][0]["text"])
        # Also when a batch-coupled run of the same prompt has left its pages in the prefix cache.
        parallel([lambda: self.server.complete(PROMPT, max_tokens=60)] * 8)
        again = self.server.complete(PROMPT + alone["choices"][0]["text"], max_tokens=40, **exact)
        server2 = Server("--no-prefix-cache")
        try:
            fresh = server2.complete(PROMPT + alone["choices"][0]["text"], max_tokens=40)
        finally:
            server2.stop()
        self.assertEqual(again["choices"][0]["text"], fresh["choices"][0]["text"])

    def test_row_knobs(self):
        for knobs in ({"k0": 8}, "oea:k0=8", {"k0": 3, "p": 0.9}, "exact", "vanilla"):
            self.server.complete("x", max_tokens=2, moe={"routing": knobs})

    def test_refusals(self):
        for moe, word in (({"routing": "lynx:budget=32"}, "another family"), ({"routing": "oea:k0=9"}, "k0"),
                          ({"routing": {"k0": 0}}, "k0"), ({"routing": {"kmax": 9}}, "kmax"), ({"routing": {"p": 0}}, "p"),
                          ({"routing": {"q": 1}}, "unknown"), ({"routing": 5}, "moe.routing"), ({"k0": 3}, "unknown"),
                          ({"routing": "oea:k0=2,min_rows=1,ride=0"}, "ride"), ({"routing": "tpk"}, "known"),
                          ({"routing": "oea:k0=@/etc/passwd"}, "files"), (7, "moe"), ({"score_as_decode": True}, "echo"),
                          ({"routing": "oea:k0=2,maxp=5"}, "maxp")):
            status, answer = self.server.post("/v1/completions", {"prompt": "x", "moe": moe})
            self.assertEqual(status, 400, (moe, answer))
            self.assertIn(word, answer["error"]["message"], moe)

    def test_live_switch(self):
        status, answer = self.server.post("/v1/moe/routing", {"routing": "vanilla"})
        self.assertEqual((status, answer["previous"]), (200, "oea:k0=2,min_rows=4"))
        try:
            self.assertTrue(all(not a["usage"]["moe"]["batch_dependent"] for a in self.batch(4)))
            for bad in ("oea:k0=99", "nonsense", "oea:k0=@/etc/passwd", ""):
                self.assertEqual(self.server.post("/v1/moe/routing", {"routing": bad})[0], 400)
            status, answer = self.server.post("/v1/completions", {"prompt": "x", "moe": {"routing": {"k0": 2}}})
            self.assertEqual(status, 400)
        finally:
            self.server.post("/v1/moe/routing", {"routing": "oea:k0=2"})

    def test_stats(self):
        self.batch(6)
        status, text = self.server.get("/v1/moe/stats?heat=1")
        stats = json.loads(text)
        self.assertEqual(status, 200)
        self.assertEqual(len(stats["layers"]), 5)
        self.assertEqual(len(stats["layers"][0]["hottest"]), 8)
        self.assertGreater(stats["decode"]["distinct_experts_mean"], 1)
        heat = stats["last_step"]
        self.assertEqual(len(heat["own_rows"]), 5 * 128)
        self.assertEqual(sum(1 for o, r in zip(heat["own_rows"], heat["rides"]) if o or r), sum(heat["distinct"]))

    def test_score_as_decode(self):
        prompts = [p["text"] for p in (a["choices"][0] for a in self.batch(8))]
        body = {"prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 0}
        plain = self.server.post("/v1/completions", body)[1]
        scored = self.server.post("/v1/completions", {**body, "moe": {"score_as_decode": True}})[1]
        exact = self.server.post("/v1/completions", {**body, "moe": {"score_as_decode": True, "routing": "exact"}})[1]
        values = [[c["logprobs"]["token_logprobs"] for c in a["choices"]] for a in (plain, scored, exact)]
        self.assertEqual(values[0], values[2])
        self.assertNotEqual(values[0], values[1])
        self.assertGreater(scored["usage"]["moe"]["piggyback_rate"], 0)

    def test_routed_experts(self):
        a = self.server.complete("Once upon a time", max_tokens=4, ignore_eos=True, moe={"return_routed_experts": True})
        experts = a["choices"][0]["routed_experts"]
        self.assertEqual(len(experts), a["usage"]["total_tokens"] - 1)
        for token in experts:
            self.assertEqual(len(token), 5)
            for layer in token:
                self.assertEqual(len(set(layer)), len(layer))
                self.assertTrue(all(0 <= e < 128 for e in layer))


class PrefixCache(unittest.TestCase):
    def test_reuse_changes_nothing_but_the_work(self):
        with Server() as server:
            first = server.complete(PROMPT, max_tokens=30)
            second = server.complete(PROMPT, max_tokens=30)
            self.assertEqual(first["choices"], second["choices"])
            self.assertEqual(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
            self.assertGreaterEqual(second["usage"]["prompt_tokens_details"]["cached_tokens"], 16)
            longer = PROMPT + first["choices"][0]["text"]
            reused = server.complete(longer, max_tokens=30)
            self.assertGreaterEqual(reused["usage"]["prompt_tokens_details"]["cached_tokens"], 32)
            pages = server.pages()
            self.assertEqual((pages["leaked"], pages["running"]), (0, 0))
            self.assertGreater(pages["cached"], 0)
        with Server("--no-prefix-cache") as server:
            self.assertEqual(server.complete(longer, max_tokens=30)["choices"], reused["choices"])

    def test_eviction(self):
        with Server("--kv-memory", "2M", "--ctx-size", "512") as server:
            want = server.complete(PROMPT, max_tokens=20)["choices"]
            for i in range(60):
                server.complete(f"{i} different words begin this prompt, number {i} of many", max_tokens=60, ignore_eos=True)
            self.assertEqual(server.complete(PROMPT, max_tokens=20)["choices"], want)
            self.assertEqual(server.pages()["leaked"], 0)


class Chat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def chat(self, **body):
        return self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Who are you?"}],
                                                         "temperature": 0, "max_tokens": 20, **body})

    def test_answer_and_stream(self):
        status, answer = self.chat(logprobs=True, top_logprobs=2)
        self.assertEqual(status, 200, answer)
        choice = answer["choices"][0]
        self.assertEqual(answer["object"], "chat.completion")
        self.assertEqual(choice["message"]["role"], "assistant")
        self.assertEqual(len(choice["logprobs"]["content"]), answer["usage"]["completion_tokens"])
        # The template is the documented one.
        raw = self.server.complete('"Who are you?" said the visitor.\n\n"', max_tokens=20)
        self.assertEqual(raw["choices"][0]["text"], choice["message"]["content"])
        events = list(self.server.stream("/v1/chat/completions", {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Who are you?"}]}], "temperature": 0,
            "max_completion_tokens": 20}))
        self.assertEqual(events[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual("".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1]),
                         choice["message"]["content"])
        self.assertEqual(events[-2]["choices"][0]["finish_reason"], choice["finish_reason"])

    def test_refusals(self):
        for body, word in (({"messages": []}, "messages"), ({"messages": [{"role": "wizard", "content": "x"}]}, "role"),
                           ({"messages": [{"role": "user", "content": 5}]}, "content"), ({"messages": "x"}, "messages"),
                           ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text"),
                           ({"tools": [{"type": "function"}]}, "tools"), ({"tools": 5}, "tools"),
                           ({"tool_choice": "required"}, "tool_choice"), ({"top_logprobs": 3}, "logprobs"),
                           ({"chat_template_kwargs": {"tokenize": True}}, "unknown"),
                           ({"messages": [{"role": "user", "content": "word " * 3000}]}, "2048")):
            status, answer = self.chat(**body)
            self.assertEqual(status, 400, (body, answer))
            self.assertIn(word, answer["error"]["message"], str(body)[:80])

    def test_control_tokens_in_user_text_are_text(self):
        status, plain = self.chat(messages=[{"role": "user", "content": "a <|endoftext|> b"}])
        self.assertEqual(status, 200, plain)
        ids = self.server.post("/tokenize", {"prompt": "<|endoftext|>"})[1]["tokens"]
        self.assertEqual(len(ids), 1)
        as_control = self.server.post("/tokenize", {"prompt": '"a <|endoftext|> b" said the visitor.\n\n"'})[1]["count"]
        self.assertGreater(plain["usage"]["prompt_tokens"], as_control)


class Scripted(unittest.TestCase):
    """Fixtures: the bundled weights with another template, and with poisoned weights."""

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="carpool-serve-"))
        self.addCleanup(shutil.rmtree, self.dir)
        for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(BUNDLED / name, self.dir)

    def test_no_template(self):
        (self.dir / "model.safetensors").symlink_to(BUNDLED / "model.safetensors")
        shutil.copy(BUNDLED / "model.safetensors", self.dir / "m")
        (self.dir / "model.safetensors").unlink()
        (self.dir / "m").rename(self.dir / "model.safetensors")
        with Server(model=self.dir) as server:
            status, answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
            self.assertEqual((status, answer["error"]["code"]), (400, "no_chat_template"))
            server.complete("x", max_tokens=2)

    def test_hostile_template(self):
        shutil.copy(BUNDLED / "model.safetensors", self.dir)
        (self.dir / "chat_template.jinja").write_text("{% for i in range(10**9) %}{% endfor %}x")
        with Server(model=self.dir) as server:
            events = server.stream("/v1/completions", {"prompt": "x", "max_tokens": 1500, "ignore_eos": True})
            next(events)
            status, answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
            self.assertIn(status, (400, 503), answer)
            self.assertEqual(list(events)[-1], "[DONE]")

    def test_nan_ends_one_request_and_names_the_layer(self):
        data = bytearray((BUNDLED / "model.safetensors").read_bytes())
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        begin, _ = header["model.embed_tokens.weight"]["data_offsets"]
        row = 8 + size + begin + 77 * 256 * 2
        data[row:row + 512] = b"\xc0\x7f" * 256  # bf16 NaN: the embedding of token 77
        (self.dir / "model.safetensors").write_bytes(data)
        with Server(model=self.dir) as server:
            good = server.complete([100, 200, 300], max_tokens=60, ignore_eos=True, logit_bias={"77": -100})
            runs = parallel([lambda: server.complete([100, 200, 300], max_tokens=60, ignore_eos=True,
                                                     logit_bias={"77": -100}),
                             lambda: server.post("/v1/completions", {"prompt": [5, 77, 6], "max_tokens": 5})])
            self.assertEqual(runs[0]["choices"], good["choices"])
            self.assertEqual(runs[1][0], 500)
            self.assertIn("embedding", runs[1][1]["error"]["message"])
            self.assertEqual(server.pages()["leaked"], 0)


if __name__ == "__main__":
    unittest.main()
