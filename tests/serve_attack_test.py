"""carpool serve against hostile and broken clients; after each, another client's stream is whole."""
import json
import socket
import time
import unittest

from serving import Server, parallel

BODY = json.dumps({"prompt": "It was", "max_tokens": 6, "temperature": 0}).encode()


def post(body=BODY, extra=b"", path=b"/v1/completions"):
    return b"POST " + path + b" HTTP/1.1\r\nHost: x\r\n" + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


class Attacks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--request-timeout-ms", 1500, "--write-timeout-ms", 1500, "--idle-timeout-ms", 3000,
                            "--max-connections", 64, "--ping-ms", 300)
        cls.text = cls.server.complete("It was", max_tokens=6)["choices"][0]["text"]

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def tearDown(self):
        self.assertEqual(self.server.complete("It was", max_tokens=6)["choices"][0]["text"], self.text)
        deadline = time.time() + 10
        while self.server.pages()["running"] and time.time() < deadline:
            time.sleep(0.05)
        pages = self.server.pages()
        self.assertEqual((pages["leaked"], pages["running"]), (0, 0))

    def open(self):
        s = socket.create_connection(("127.0.0.1", self.server.port), timeout=20)
        self.addCleanup(s.close)
        return s

    def talk(self, data, more=b""):
        s = self.open()
        try:
            s.sendall(data)
            if more:
                s.sendall(more)
        except OSError:
            pass
        out = b""
        try:
            while chunk := s.recv(65536):
                out += chunk
        except OSError:
            pass
        return out

    def status(self, data):
        answer = self.talk(data)
        return int(answer.split(b" ")[1]) if answer.startswith(b"HTTP/1.1 ") else None

    def test_malformed_requests(self):
        for data in (b"\r\n\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/9.9\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
                     b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nabc\r\n",
                     b"G\0T / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nA b: c\r\n\r\n"):
            with self.subTest(data[:60]):
                self.assertIn(self.status(data), (400, 413, None))

    def test_giant_header_and_body(self):
        self.assertEqual(self.status(b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n"), 431)
        self.assertEqual(self.status(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"), 431)
        self.assertEqual(self.status(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n"), 413)
        big = b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"100000\r\n" + b"a" * 0x100000 + b"\r\n"
        self.assertEqual(self.status(big + b"".join([b"100000\r\n" + b"a" * 0x100000 + b"\r\n"] * 20)), 413)

    def test_long_prompts(self):
        for text in ("a" * 1_000_000, " " * 900_000, "\u00e9" * 400_000, "word " * 180_000):
            status, answer = self.server.post("/v1/completions", {"prompt": text})
            self.assertEqual(status, 400)
            self.assertIn("2048", answer["error"]["message"])

    def test_pipelined_and_chunked(self):
        answer = self.talk(post() + post() + post(extra=b"Connection: close\r\n"))
        self.assertEqual(answer.count(b"HTTP/1.1 200"), 3)
        chunked = (b"POST /v1/completions HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
                   + b"".join(b"1\r\n%c\r\n" % c for c in BODY) + b"0\r\n\r\n")
        self.assertIn(b"HTTP/1.1 200", self.talk(chunked))
        s = self.open()
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY))
        self.assertTrue(s.recv(100).startswith(b"HTTP/1.1 100"))
        s.sendall(BODY)
        self.assertIn(b"HTTP/1.1 200", s.recv(65536))

    def test_http_1_0(self):
        body = json.dumps({"prompt": "It was", "max_tokens": 3, "stream": True}).encode()
        answer = self.talk(post(body).replace(b"HTTP/1.1", b"HTTP/1.0"))
        self.assertNotIn(b"chunked", answer)
        self.assertTrue(answer.rstrip().endswith(b"[DONE]"))

    def test_slow_loris(self):
        slow = [self.open() for _ in range(20)]
        begin = time.time()
        for s in slow:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nX: ")
        for _ in range(8):
            time.sleep(0.3)
            for s in slow:
                try:
                    s.sendall(b"a")
                except OSError:
                    pass
        for s in slow:
            try:
                answer = s.recv(1000)
                self.assertTrue(answer == b"" or b" 408 " in answer, answer)
            except ConnectionError:
                pass
        self.assertLess(time.time() - begin, 10)

    def test_a_client_that_never_reads(self):
        body = json.dumps({"prompt": ["x"] * 32, "max_tokens": 2000, "ignore_eos": True, "stream": True, "logprobs": 5}).encode()
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self.addCleanup(s.close)
        s.connect(("127.0.0.1", self.server.port))
        s.sendall(post(body))
        deadline = time.time() + 60
        while self.server.metrics()['carpool:active_choices{model_name="books-20m"}'] == 0 and time.time() < deadline:
            time.sleep(0.02)
        while self.server.metrics()['carpool:active_choices{model_name="books-20m"}'] > 0:
            self.assertLess(time.time(), deadline)
            time.sleep(0.1)

    def test_half_closed_is_gone(self):
        s = self.open()
        s.sendall(post(json.dumps({"prompt": "x", "max_tokens": 2000, "ignore_eos": True}).encode()))
        s.shutdown(socket.SHUT_WR)
        s.settimeout(10)
        self.assertEqual(s.recv(100), b"")

    def test_too_many_connections(self):
        many = [self.open() for _ in range(70)]
        answers = []
        for s in many[60:]:
            s.settimeout(0.3)
            try:
                answers.append(s.recv(300))
            except (TimeoutError, ConnectionError):
                pass
        self.assertTrue(any(b" 503 " in a for a in answers), answers)
        for s in many:
            s.close()
        time.sleep(0.3)

    def test_pings_while_waiting(self):
        s = self.open()
        blockers = [self.open() for _ in range(40)]
        long = json.dumps({"prompt": "x " * 900, "max_tokens": 900, "ignore_eos": True, "stream": True}).encode()
        for b in blockers:
            b.sendall(post(long))
        s.sendall(post(json.dumps({"prompt": "x", "max_tokens": 4, "stream": True}).encode()))
        answer = b""
        while b"[DONE]" not in answer:
            chunk = s.recv(65536)
            self.assertTrue(chunk)
            answer += chunk
        for b in blockers:
            b.close()

    def test_garbage_beside_good_streams(self):
        want = self.server.complete("The hound", max_tokens=200, ignore_eos=True)["choices"][0]["text"]

        def stream():
            events = list(self.server.stream("/v1/completions", {"prompt": "The hound", "max_tokens": 200, "temperature": 0,
                                                                 "ignore_eos": True}))
            return "".join(e["choices"][0]["text"] for e in events[:-1])

        def garbage(i):
            for data in (b"\0" * 1000, post(b"{" * (i + 1)), post(b'{"prompt": "\xff"}'), post()[:-3], post(path=b"/../../etc"),
                         post(json.dumps({"prompt": "x" * 200_000}).encode())):
                s = socket.create_connection(("127.0.0.1", self.server.port), timeout=5)
                s.sendall(data)
                s.close()
            return want

        texts = parallel([stream] * 6 + [lambda i=i: garbage(i) for i in range(12)])
        self.assertEqual(set(texts), {want})


if __name__ == "__main__":
    unittest.main()
