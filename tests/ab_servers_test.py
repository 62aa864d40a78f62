"""carpool ab --server and --spawn: two servers compared, A/A is exact, what is no pair of servers exits 2."""
import http.server
import json
import os
import pathlib
import subprocess
import tempfile
import threading
import unittest

from serving import CARPOOL, Server

QUICK = ["--batch", "6", "--context", "24", "--windows", "1", "--rounds", "5", "--steps", "6", "--prompt", "8"]


def run(*args):
    return subprocess.run([CARPOOL, *map(str, args)], capture_output=True, text=True, timeout=300)


def url(port):
    return f"http://127.0.0.1:{port}"


class Fake(http.server.BaseHTTPRequestHandler):
    """Streams words; knows no echo."""
    model = "books-20m"

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(200, json.dumps({"data": [{"id": self.model}]}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("echo"):
            return self.answer(400, b'{"error": {"message": "echo is not supported"}}')
        chunks = [{"choices": [{"text": "word "}]}] * body["max_tokens"]
        chunks.append({"choices": [], "usage": {"completion_tokens": body["max_tokens"], "prompt_tokens": 8}})
        text = "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n"
        self.answer(200, text.encode(), "text/event-stream")


class FakeServer:
    def __init__(self, model="books-20m"):
        handler = type("Handler", (Fake,), {"model": model})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class AbServers(unittest.TestCase):
    def ab(self, *args):
        result = run("ab", *args, *QUICK, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def refused(self, args, *words, lines=1):
        result = run("ab", *args)
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertEqual(result.stderr.count("\n"), lines, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_two_servers(self):
        with Server("--routing", "vanilla") as a, Server("--routing", "oea:k0=2", "--threads", "1") as b, \
                Server("--served-model-name", "other") as other:
            r = self.ab("--server", url(a.port), url(b.port))
            self.assertIn("vanilla", r["baseline"]["routing"])
            self.assertIn("oea:k0=2", r["candidate"]["routing"])
            self.assertGreater(r["kl_mean"], 0.001)
            self.assertTrue(r["kl_is_lower_bound"])
            self.assertGreater(r["candidate"]["cross_entropy"], r["baseline"]["cross_entropy"])
            self.assertLess(r["top1_agreement"], 1.0)
            self.assertEqual(len(r["requests"]), 6)
            self.assertLess(r["candidate"]["distinct_experts"], r["baseline"]["distinct_experts"])
            self.assertEqual(len(r["candidate"]["block_step_us"]), 10)
            low, high = r["ratio"]["ci95"]
            self.assertTrue(0 < low <= r["ratio"]["value"] <= high)
            # One server with itself.
            same = self.ab("--server", url(a.port) + "/v1", url(a.port))
            self.assertEqual((same["kl_mean"], same["kl_max"], same["top1_agreement"]), (0.0, 0.0, 1.0))
            self.assertEqual(same["cross_entropy_change"]["value"], 0.0)
            self.refused(["--server", url(a.port), url(other.port), *QUICK], "same model", "other")
            self.refused(["--server", url(a.port), url(b.port), "--served-model", "nobody"], "nobody")
            self.refused(["--server", url(a.port), url(b.port), "--rounds", "4000"], "too few prompts", "bytes")
            self.refused(["vanilla", "oea:k0=3", "--server", url(a.port), url(b.port)], "own policies")

    def test_servers_of_others(self):
        with FakeServer() as fake, FakeServer("something-else") as stranger:
            r = self.ab("--server", url(fake.port), url(fake.port))
            self.assertIsNone(r["kl_mean"])
            self.assertTrue(any("No quality" in note for note in r["notes"]))
            self.assertIsNone(r["baseline"]["distinct_experts"])
            self.refused(["--server", url(fake.port), url(stranger.port), *QUICK], "same model", "something-else")
            port = fake.port
        self.refused(["--server", url(port), url(port)], "no server at", str(port))
        self.refused(["--server", "ftp://somewhere", url(port)], "ftp://somewhere")

    def test_spawn(self):
        with tempfile.TemporaryDirectory() as folder:
            for mode in ([], ["--in-turn"]):
                logs = pathlib.Path(folder, "logs" + "".join(mode))
                r = self.ab("--spawn", "vanilla", "oea:k0=2", "--logs", logs, *mode)
                self.assertGreater(r["kl_mean"], 0.001)
                self.assertEqual(any("one after the other" in note for note in r["notes"]), bool(mode))
                for name in ("baseline", "candidate"):
                    log = (logs / f"{name}.log").read_text()
                    self.assertIn("listening on", log)
                    self.assertTrue(log.rstrip().endswith("stopped"), log)  # not left behind
            logs = pathlib.Path(folder, "never")
            self.refused(["--spawn", "vanilla", "oea:k0=8", "--logs", logs], "cannot differ")
            self.refused(["--spawn", "vanilla", "oea:k0=3,kmax=2", "--logs", logs], "server did not start", "kmax",
                         lines=2)  # the first says where the logs are
            self.refused(["--spawn", "vanilla", "nonsense", "--logs", logs], "nonsense")


if __name__ == "__main__":
    unittest.main()
