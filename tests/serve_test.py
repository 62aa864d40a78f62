"""carpool serve: completions, streams, limits, keys, draining."""
import json
import os
import signal
import socket
import subprocess
import time
import unittest

from serving import BUNDLED, CARPOOL, Server, parallel

GREEDY = json.loads((BUNDLED / "golden" / "greedy.json").read_text())


class Completions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--threads", 2)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def refused(self, status, words, path="/v1/completions", **body):
        got, answer = self.server.post(path, {"prompt": "x", **body})
        self.assertEqual(got, status, answer)
        error = answer["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, error["message"])
        return error

    def test_shape(self):
        a = self.server.complete("It is a truth universally", max_tokens=8)
        self.assertEqual(a["object"], "text_completion")
        self.assertEqual(a["model"], "books-20m")
        self.assertEqual(len(a["choices"]), 1)
        self.assertEqual(a["choices"][0]["finish_reason"], "length")
        self.assertIsNone(a["choices"][0]["logprobs"])
        usage = a["usage"]
        self.assertEqual(usage["completion_tokens"], 8)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 8)
        self.assertEqual(usage["moe"]["routing"], "vanilla")
        self.assertFalse(usage["moe"]["batch_dependent"])
        self.assertEqual(usage["moe"]["distinct_experts_mean"], 8)
        self.assertEqual(usage["moe"]["piggyback_rate"], 0)
        self.assertGreater(usage["moe"]["expert_bytes"], 0)

    def test_prompts_of_all_kinds_and_n(self):
        one = self.server.complete("Alice was", max_tokens=5)["choices"][0]["text"]
        ids = self.server.post("/tokenize", {"prompt": "Alice was"})[1]["tokens"]
        self.assertEqual(self.server.post("/detokenize", {"tokens": ids})[1]["prompt"], "Alice was")
        for prompt, count in ((["Alice was"], 1), (ids, 1), ([ids, ids], 2), (["Alice was", "The"], 2)):
            answer = self.server.complete(prompt, max_tokens=5)
            self.assertEqual([c["index"] for c in answer["choices"]], list(range(count)))
            self.assertEqual(answer["choices"][0]["text"], one)
        answer = self.server.complete(["Alice was", "The"], max_tokens=3, n=3, temperature=1, seed=5)
        self.assertEqual(len(answer["choices"]), 6)

    def test_stream_equals_whole(self):
        body = {"prompt": "The Time Traveller", "temperature": 0, "max_tokens": 40}
        whole = self.server.complete(body["prompt"], max_tokens=40)
        events = list(self.server.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}}))
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual(events[-2]["choices"], [])
        for key in ("prompt_tokens", "completion_tokens"):
            self.assertEqual(events[-2]["usage"][key], whole["usage"][key])
        pieces = [e["choices"][0] for e in events[:-2]]
        self.assertEqual("".join(p["text"] for p in pieces), whole["choices"][0]["text"])
        self.assertGreater(len(pieces), 10)
        self.assertEqual([p["finish_reason"] for p in pieces[:-1]], [None] * (len(pieces) - 1))
        self.assertEqual(pieces[-1]["finish_reason"], "length")

    def test_stop_strings_across_tokens(self):
        text = self.server.complete("It was", max_tokens=40)["choices"][0]["text"]
        for begin, length in ((5, 1), (9, 7), (20, 12)):
            stop = text[begin:begin + length]
            want = text[:text.index(stop)]
            a = self.server.complete("It was", max_tokens=40, stop=stop)["choices"][0]
            self.assertEqual((a["text"], a["finish_reason"]), (want, "stop"))
            events = list(self.server.stream("/v1/completions", {
                "prompt": "It was", "temperature": 0, "max_tokens": 40, "stop": ["\0never", stop]}))
            self.assertEqual("".join(e["choices"][0]["text"] for e in events[:-1]), want)

    def test_stop_token_ids_and_min_tokens(self):
        a = self.server.complete("It was", max_tokens=20, logprobs=0, return_tokens=True)
        tokens = a["choices"][0]["logprobs"]["tokens"]
        third = self.server.post("/tokenize", {"prompt": tokens[2]})[1]["tokens"]
        if len(third) == 1:
            stopped = self.server.complete("It was", max_tokens=20, stop_token_ids=third)
            self.assertEqual(stopped["choices"][0]["finish_reason"], "stop")
            self.assertLessEqual(stopped["usage"]["completion_tokens"], 3)
            longer = self.server.complete("It was", max_tokens=20, stop_token_ids=third, min_tokens=10)
            self.assertGreaterEqual(longer["usage"]["completion_tokens"], 10)

    def test_seeds(self):
        def run(**kw):
            return self.server.complete("Once", temperature=1.0, max_tokens=16, **kw)["choices"][0]["text"]
        self.assertEqual(run(seed=1), run(seed=1))
        self.assertNotEqual(run(seed=1), run(seed=2))
        self.assertNotEqual(run(), run())

    def test_a_seeded_sample_does_not_depend_on_its_batch(self):
        def run(i):
            return self.server.complete("Mr. Holmes", temperature=1.0, seed=i, max_tokens=24,
                                        presence_penalty=0.5, logit_bias={"300": 1})["choices"][0]["text"]
        alone = [run(i) for i in range(8)]
        together = parallel([lambda i=i: run(i) for i in range(8)])
        self.assertEqual(alone, together)

    def test_echo_and_logprobs(self):
        a = self.server.complete("The hound of the", max_tokens=3, echo=True, logprobs=2)
        text, lp = a["choices"][0]["text"], a["choices"][0]["logprobs"]
        self.assertTrue(text.startswith("The hound of the"))
        self.assertEqual(len(lp["tokens"]), a["usage"]["total_tokens"])
        self.assertIsNone(lp["token_logprobs"][0])
        for value, top in zip(lp["token_logprobs"][1:], lp["top_logprobs"][1:]):
            self.assertLessEqual(value, 0)
            self.assertLessEqual(len(top), 2)
        for offset, token in zip(lp["text_offset"], lp["tokens"]):
            self.assertEqual(text.encode()[offset:offset + len(token.encode())].decode(), token)
        # Scoring alone, as evaluation clients do it; the same numbers.
        scored = self.server.complete("The hound of the", max_tokens=0, echo=True, logprobs=2)
        n = scored["usage"]["prompt_tokens"]
        self.assertEqual(scored["choices"][0]["text"], "The hound of the")
        self.assertEqual(scored["choices"][0]["logprobs"]["token_logprobs"], lp["token_logprobs"][:n])

    def test_models_health_version(self):
        status, text = self.server.get("/v1/models")
        model = json.loads(text)["data"][0]
        self.assertEqual((status, model["id"], model["max_model_len"]), (200, "books-20m", 2048))
        self.assertEqual(model["routing"], "vanilla")
        self.assertEqual(self.server.get("/v1/models/books-20m")[0], 200)
        self.assertEqual(self.server.get("/v1/models/other")[0], 404)
        self.assertEqual(json.loads(self.server.get("/health")[1]), {"status": "ok"})
        self.assertIn("version", json.loads(self.server.get("/version")[1]))

    def test_errors(self):
        self.refused(404, "wanted 'books-20m'", model="gpt-4")
        self.refused(400, "prompt: is missing", prompt=None)
        self.refused(400, "prompt", prompt="")
        self.refused(400, "prompt", prompt=[])
        self.refused(400, "prompt", prompt=[4096])
        self.refused(400, "prompt", prompt=[[1], [True]])
        self.refused(400, "prompt", prompt=5)
        self.refused(400, ["2048", "max_tokens"], max_tokens=2048)
        e = self.refused(400, ["2048"], prompt=[5] * 2049)
        self.refused(400, "stop", stop=[""])
        self.refused(400, "stop", stop=["a"] * 17)
        self.refused(400, "stop", stop=["a" * 2000])
        self.refused(400, "stop", stop=7)
        self.refused(400, "suffix", suffix="abc")
        self.refused(400, "stream_options", stream_options={"include_usage": True})
        self.refused(400, "response_format", response_format={"type": "json_object"})
        self.refused(400, "logit_bias", logit_bias={"x": 1})
        self.refused(400, "logit_bias", logit_bias={"5": 101})
        self.refused(400, "best_of", best_of=5)
        self.refused(400, "n:", n=129)
        self.assertEqual(self.server.get("/nowhere")[0], 404)
        self.assertEqual(self.server.get("/v1/completions")[0], 405)
        self.assertEqual(e["type"], "invalid_request_error")

    def test_bodies(self):
        for body, word in ((b"", "empty"), (b"{", "JSON"), (b"[]", "object"), (b'{"prompt": "a", "prompt": "b"}', "twice"),
                           (b'{"prompt": "\xff\xfe"}', "JSON"), (b'{"a":' * 1000 + b"1" + b"}" * 1000, "nested"),
                           (b"[" * 1_000_000, "nested"), (b'{"temperature": NaN}', "JSON"),
                           (b'{"prompt": "x", "temperature": 1e400}', ""), (b'{"prompt": "\\ud800"}', "JSON")):
            status, answer = self.server.post("/v1/completions", body)
            self.assertEqual(status, 400, body[:50])
            self.assertIn(word, answer["error"]["message"])

    def test_every_numeric_field(self):
        fields = {"max_tokens": [0], "max_completion_tokens": [0], "temperature": [101], "top_p": [0, 1.1],
                  "top_k": [-2], "min_p": [1.5], "repetition_penalty": [0], "presence_penalty": [3],
                  "frequency_penalty": [-3], "n": [0], "logprobs": [21], "min_tokens": [5000], "best_of": [0],
                  "priority": [2**40], "seed": []}
        common = [-2**31 - 1, 2**63, -2**63, 1e300, "1", True, [1], {}, 0.5]
        for field, extra in fields.items():
            for value in common + extra:
                if value == 0.5 and field in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
                                              "frequency_penalty"):
                    continue
                if field == "seed" and value == -2**31 - 1:
                    continue
                with self.subTest(field=field, value=value):
                    self.refused(400, field, **{field: value})

    def test_metrics(self):
        self.server.complete("Some words", max_tokens=4)
        values = self.server.metrics()
        label = '{model_name="books-20m"}'
        for name in ("vllm:num_requests_running", "vllm:prompt_tokens_total", "sglang:generation_tokens_total",
                     "llamacpp:tokens_predicted_total", "carpool:expert_bytes_total", "carpool:oldest_waiting_seconds"):
            self.assertIn(name + label, values)
        self.assertGreater(values["vllm:generation_tokens_total" + label], 0)
        self.assertGreater(values["carpool:measured_bandwidth_bytes_per_second" + label], 1e8)
        self.assertGreater(values["carpool:bandwidth_utilisation" + label], 0)
        pages = self.server.pages()
        self.assertEqual((pages["leaked"], pages["running"]), (0, 0))
        self.assertEqual(pages["free"] + pages["cached"], pages["total"])

    def test_disconnect_frees_the_slot(self):
        body = json.dumps({"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": True})
        s = socket.create_connection(("127.0.0.1", self.server.port))
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        s.recv(100)
        s.close()
        deadline = time.time() + 10
        while self.server.metrics()['carpool:active_choices{model_name="books-20m"}'] > 0:
            self.assertLess(time.time(), deadline)
            time.sleep(0.02)
        self.assertEqual(self.server.pages()["running"], 0)


class Options(unittest.TestCase):
    def test_api_key(self):
        with Server("--api-key", "secret") as server:
            for headers in ({}, {"Authorization": "Bearer wrong!"}, {"Authorization": "secret"}):
                self.assertEqual(server.get("/v1/models", headers=headers)[0], 401)
            self.assertEqual(server.get("/v1/models", headers={"Authorization": "Bearer secret"})[0], 200)
            self.assertEqual(server.get("/health")[0], 200)

    def test_queue_full(self):
        with Server("--max-running-requests", 1, "--max-queue", 1) as server:
            def run(_):
                return server.request("POST", "/v1/completions",
                                      {"prompt": "x", "max_tokens": 400, "ignore_eos": True})
            answers = parallel([lambda i=i: run(i) for i in range(6)])
            self.assertEqual({a[0] for a in answers}, {200, 503})
            refused = next(a for a in answers if a[0] == 503)
            self.assertIn("Retry-After", refused[1])
            self.assertIn("queue is full", refused[2])

    def test_small_cache_queues_and_loses_nothing(self):
        with Server("--kv-memory", "4M", "--max-running-requests", 16) as server:
            alone = server.complete("It was", max_tokens=100)["choices"][0]["text"]
            texts = parallel([lambda: server.complete("It was", max_tokens=100)["choices"][0]["text"]] * 24)
            self.assertEqual(set(texts), {alone})
            self.assertEqual(server.pages()["leaked"], 0)

    def test_port_in_use(self):
        with Server() as server:
            second = subprocess.run([CARPOOL, "serve", "--port", str(server.port)], capture_output=True, text=True, timeout=60)
            self.assertEqual(second.returncode, 2)
            self.assertIn("in use", second.stderr)

    def test_bad_arguments(self):
        for args, word in ((["--port", "70000"], "port"), (["--kv-memory", "lots"], "--kv-memory"),
                           (["--kv-memory", "1"], "at least one page"), (["--kv-memory", "900G"], "GB are available"),
                           (["--routing", "oea"], "oea"),
                           (["--host", "nowhere.example"], "--host"), (["--ctx-size", "99999"], "2048"),
                           (["--api-key-file", "/nonexistent"], "nonexistent"), (["/nonexistent"], "nonexistent")):
            result = subprocess.run([CARPOOL, "serve", "--port", "0", *args], capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, 2, (args, result.stderr))
            self.assertIn(word, result.stderr)

    def test_sigterm_drains(self):
        server = Server()
        events = server.stream("/v1/completions", {"prompt": "x", "max_tokens": 300, "ignore_eos": True})
        next(events)
        server.process.send_signal(signal.SIGTERM)
        rest = list(events)
        self.assertEqual(rest[-1], "[DONE]")
        self.assertEqual(rest[-2]["choices"][0]["finish_reason"], "length")
        server.stop()

    def test_second_sigterm_stops(self):
        server = Server()
        events = server.stream("/v1/completions", {"prompt": "x", "max_tokens": 2000, "ignore_eos": True})
        next(events)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        begin = time.time()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(10)
        self.assertLess(time.time() - begin, 2)
        server.stop()


if __name__ == "__main__":
    unittest.main()
