"""What the server's tests share: a server process, plain requests, streams."""
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time

CARPOOL = os.environ["CARPOOL"]
BUNDLED = pathlib.Path(__file__).resolve().parent.parent / "models" / "books-20m"


class Server:
    """`carpool serve` on a free port; a context manager."""

    def __init__(self, *args, model=None, env=None, wait=True):
        self.log = tempfile.TemporaryFile("w+")
        command = [CARPOOL, "serve", "--port", "0", *map(str, args)]
        if model:
            command.append(str(model))
        self.process = subprocess.Popen(command, stderr=self.log, env={**os.environ, **(env or {})})
        self.port = None
        deadline = time.time() + 120
        while self.port is None:
            found = re.search(r"listening on http://[^ ]*:(\d+)", self.stderr())
            if found:
                self.port = int(found.group(1))
            elif self.process.poll() is not None or time.time() > deadline:
                raise RuntimeError("the server did not start:\n" + self.stderr())
            else:
                time.sleep(0.02)
        while wait and self.get("/health")[0] != 200:
            if self.process.poll() is not None or time.time() > deadline:
                raise RuntimeError("the server did not become healthy:\n" + self.stderr())
            time.sleep(0.05)

    def stderr(self):
        self.log.flush()
        with open(f"/proc/self/fd/{self.log.fileno()}") as copy:
            return copy.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self, expect=0):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise RuntimeError("the server did not stop:\n" + self.stderr())
        code = self.process.returncode
        assert code == expect, f"exit code {code}:\n{self.stderr()}"
        self.log.close()

    def request(self, method, path, body=None, headers=None, timeout=120):
        """(status, headers, text)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def get(self, path, **kw):
        status, _, text = self.request("GET", path, **kw)
        return status, text

    def post(self, path, body, **kw):
        """(status, document)"""
        status, _, text = self.request("POST", path, body, **kw)
        return status, json.loads(text)

    def complete(self, prompt, path="/v1/completions", **fields):
        status, answer = self.post(path, {"prompt": prompt, "temperature": 0, **fields})
        assert status == 200, answer
        return answer

    def stream(self, path, body):
        """Yields the events' documents; the last is the string [DONE]."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", path, json.dumps({**body, "stream": True}))
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        for line in answer:
            line = line.decode().rstrip("\n")
            if line.startswith("data: "):
                yield line[6:] if line == "data: [DONE]" else json.loads(line[6:])
        connection.close()

    def metrics(self):
        """name{labels} -> value"""
        status, text = self.get("/metrics")
        assert status == 200, text
        values = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def pages(self):
        return {re.search('state="([a-z]+)"', k).group(1): v for k, v in self.metrics().items()
                if k.startswith("carpool:kv_pages")}

    def rss_bytes(self):
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024


def parallel(functions):
    """Runs functions in threads; returns their results, raises the first error."""
    results, errors = [None] * len(functions), []

    def call(i, f):
        try:
            results[i] = f()
        except BaseException as e:  # noqa: BLE001 - handed on
            errors.append(e)

    threads = [threading.Thread(target=call, args=(i, f)) for i, f in enumerate(functions)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results
