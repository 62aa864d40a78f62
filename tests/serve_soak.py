"""Soak: many requests, a fifth of them broken off, malformed ones mixed in. `make soak`; SOAK_REQUESTS sets the number.

Asserted: no stuck slot, no leaked page, every survivor's text equal to its solo run, resident memory steady.
"""
import json
import os
import random
import socket
import threading
import time

from serving import Server

REQUESTS = int(os.environ.get("SOAK_REQUESTS", "10000"))
CLIENTS = int(os.environ.get("SOAK_CLIENTS", "32"))
STARTS = ["It was", "The Time Traveller", "Alice", "Mr. Holmes", "Miss Bennet", "Upon the moor", "Once", "There", "She said",
          "The hound of the Baskervilles", "In my younger days I", "A single man in possession of a good fortune"]


def exchange(port, body, leave_after=None):
    """The streamed text, or None when left early."""
    s = socket.create_connection(("127.0.0.1", port), timeout=120)
    try:
        s.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        data = b""
        while chunk := s.recv(65536):
            data += chunk
            if leave_after is not None and len(data) > leave_after:
                return None
    finally:
        s.close()
    head, _, rest = data.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        return head.split(b"\r\n")[0].decode()
    events = [e[6:] for e in rest.decode().split("\n\n") if e.startswith("data: ")]
    assert events[-1] == "[DONE]", rest[-200:]
    return "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1])


def body(start, tokens, exact=True):
    return json.dumps({"prompt": start, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True,
                       **({"moe": {"routing": "exact"}} if exact else {})}).encode()


def main():
    # A small cache: it fills early and evicts from then on, so that what grows later would be a leak.
    with Server("--routing", "oea:k0=3", "--max-queue", 4096, "--kv-memory", "6M") as server:
        solo = {s: exchange(server.port, body(s, 24)) for s in STARTS}
        left = [REQUESTS]
        lock = threading.Lock()
        counts = {"whole": 0, "left": 0, "malformed": 0, "batch-coupled": 0}
        errors, sizes = [], []

        def client(seed):
            rng = random.Random(seed)
            while not errors:
                with lock:
                    if left[0] == 0:
                        return
                    left[0] -= 1
                    if left[0] % max(REQUESTS // 50, 1) == 0:
                        sizes.append(server.rss_bytes())
                start, dice = rng.choice(STARTS), rng.random()
                try:
                    if dice < 0.05:
                        kind = "malformed"
                        bad = rng.choice([b"{", b'{"prompt": 5}', b"\xff\xfe", b'{"prompt":"x","n":-1}', b"[" * 500])
                        answer = exchange(server.port, bad)
                        assert answer and " 400 " in answer, answer
                    elif dice < 0.25:
                        kind = "left"
                        exchange(server.port, body(start, 24), leave_after=rng.randrange(0, 4000))
                    elif dice < 0.4:
                        kind = "batch-coupled"
                        assert exchange(server.port, body(start, 24, exact=False))
                    else:
                        kind = "whole"
                        text = exchange(server.port, body(start, 24))
                        assert text == solo[start], (text, solo[start])
                    with lock:
                        counts[kind] += 1
                except Exception as e:  # noqa: BLE001 - reported below
                    errors.append(e)

        begin = time.time()
        threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if errors:
            raise errors[0]
        deadline = time.time() + 30
        while True:
            values, pages = server.metrics(), server.pages()
            active = values['carpool:active_choices{model_name="books-20m"}']
            if (active, pages["running"]) == (0, 0) or time.time() > deadline:
                break
            time.sleep(0.1)
        assert (active, pages["running"], pages["leaked"]) == (0, 0, 0), (active, pages)
        quarter = len(sizes) // 4
        drift = sizes[-1] / sizes[quarter] - 1 if quarter else 0
        print(f"soak: {REQUESTS} requests in {time.time() - begin:.0f} s, {counts}; stuck 0, leaked 0, "
              f"resident memory {sizes[-1] / 1e6:.1f} MB, drift after the first quarter {100 * drift:+.2f} %")
        if REQUESTS >= 10000:
            assert drift < 0.02, sizes


if __name__ == "__main__":
    main()
