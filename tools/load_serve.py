#!/usr/bin/env python3
"""64 clients against a running `fidelio serve` (standard library alone): requests of random lengths, whole and streamed,
clients that leave in the middle, that read slowly, bodies too large, bad JSON, bad UTF-8, requests behind each other, floods
of headers. Then: nothing but what was meant was answered, /health answered in time, memory is where it was, and every page
of the cache has come back.

The cache is to be of 16384 tokens, as it is unless the server is told otherwise.

    fidelio serve models/quill-26m --port 8000 & tools/load_serve.py http://127.0.0.1:8000 $! [seconds] [clients]
"""
import json
import random
import re
import socket
import sys
import threading
import time
from urllib.parse import urlparse


class Connection:
    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=120)
        self.held = b""

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError:
            pass  # it has refused already, and said why

    def until(self, mark):
        while mark not in self.held:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self.held += data
        text, self.held = self.held.split(mark, 1)
        return text

    def take(self, count):
        while len(self.held) < count:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self.held += data
        text, self.held = self.held[:count], self.held[count:]
        return text

    def answer(self, pause=0.0):
        head = self.until(b"\r\n\r\n").decode()
        status = int(head[9:12])
        length = re.search(r"Content-Length: (\d+)", head)
        if length:
            return status, self.take(int(length[1]))
        body = b""
        while True:
            size = int(self.until(b"\r\n"), 16)
            body += self.take(size)
            self.take(2)
            if size == 0:
                return status, body
            time.sleep(pause)

    def close(self):
        self.socket.close()


def request(path, body, extra=b""):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"POST " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\n" + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


GET = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Load:
    def __init__(self, url, seconds, clients):
        parsed = urlparse(url)
        self.address, self.end, self.clients = (parsed.hostname, parsed.port or 80), time.time() + seconds, clients
        self.wrong, self.counts, self.health, self.lock = [], {}, [], threading.Lock()

    def expect(self, what, status, allowed):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1
            if status not in allowed:
                self.wrong.append((what, status))

    def body(self, random):
        return {"prompt": "word " * random.randint(1, 60), "max_tokens": random.randint(1, 80), "seed": random.randint(0, 9),
                "temperature": random.choice([0, 1]), "stream": random.random() < 0.5, "ignore_eos": random.random() < 0.5}

    def one(self, connection, random):
        kind = random.choices(["whole", "leaves", "slow", "large", "json", "utf8", "behind", "headers", "schema"], [10, 2, 1, 1, 1, 1, 2, 1, 2])[0]
        if kind == "whole":
            connection.send(request("/v1/completions", self.body(random)))
            self.expect(kind, connection.answer()[0], (200, 503))
        elif kind == "leaves":
            connection.send(request("/v1/completions", {**self.body(random), "stream": True, "max_tokens": 400, "ignore_eos": True}))
            connection.socket.recv(random.randint(1, 2000))
            self.expect(kind, 200, (200,))
            return False
        elif kind == "slow":
            connection.send(request("/v1/completions", {**self.body(random), "stream": True}))
            self.expect(kind, connection.answer(pause=0.05)[0], (200, 503))
        elif kind == "large":
            connection.send(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n" + b" " * 100000)
            self.expect(kind, connection.answer()[0], (413,))
            return False
        elif kind == "json":
            connection.send(request("/v1/completions", b'{"prompt": ' + random.choice([b"", b"[", b"{" * 5000, b'"\\u12"', b"NaN"])))
            self.expect(kind, connection.answer()[0], (400,))
        elif kind == "utf8":
            connection.send(request("/v1/completions", b'{"prompt": "\xff\xfe\xc3"}'))
            self.expect(kind, connection.answer()[0], (400,))
        elif kind == "behind":
            short = {**self.body(random), "max_tokens": 3}
            connection.send(request("/v1/completions", short) + GET % b"/version" + request("/tokenize", {"prompt": "a b"}))
            self.expect(kind, connection.answer()[0], (200, 503))
            self.expect(kind, connection.answer()[0], (200,))
            self.expect(kind, connection.answer()[0], (200,))
        elif kind == "headers":
            connection.send(b"GET /health HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 100) for i in range(1000)) + b"\r\n")
            self.expect(kind, connection.answer()[0], (431,))
            return False
        else:
            schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": random.randint(1, 999)}}, "required": ["a"]}
            connection.send(request("/v1/completions", {**self.body(random), "stream": False, "max_tokens": 60,
                                                         "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}))
            status, body = connection.answer()
            self.expect(kind, status, (200, 503))
            if status == 200 and json.loads(body)["choices"][0]["finish_reason"] == "stop":
                if json.loads(json.loads(body)["choices"][0]["text"])["a"] > schema["properties"]["a"]["maximum"]:
                    self.expect("schema's answer", 0, ())
        return True

    def client(self, number):
        chance = random.Random(number)
        connection = None
        while time.time() < self.end:
            try:
                connection = connection or Connection(self.address)
                if not self.one(connection, chance):
                    connection.close()
                    connection = None
            except (OSError, EOFError, ValueError) as error:
                with self.lock:
                    self.wrong.append(("connection", repr(error)))
                connection = None

    def watch(self):
        while time.time() < self.end:
            start = time.time()
            connection = Connection(self.address)
            connection.send(GET % b"/health")
            self.expect("health", connection.answer()[0], (200,))
            connection.close()
            self.health.append(time.time() - start)
            time.sleep(0.1)

    def run(self):
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(self.clients)] + [threading.Thread(target=self.watch)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # A cache's memory is the server's from when it is first written: prompts that share nothing, twice what it holds.
    def fill_cache(self, tokens=2 * 16384):
        connection, chance = Connection(self.address), random.Random(-1)
        connection.send(GET % b"/v1/models")
        length = min(1000, json.loads(connection.answer()[1])["data"][0]["max_model_len"] - 1)
        for _ in range(tokens // length + 1):
            connection.send(request("/v1/completions", {"prompt": [chance.randint(3, 200) for _ in range(length)], "max_tokens": 1}))
            self.expect("fills", connection.answer()[0], (200,))
        connection.close()

    def metric(self, name):
        connection = Connection(self.address)
        connection.send(GET % b"/metrics")
        text = connection.answer()[1].decode()
        connection.close()
        return float(re.search(rf"^{name}\{{[^}}]*\}} (\S+)$", text, re.M)[1])


def resident(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read())[1])


def main(url, pid, seconds, clients):
    warm = Load(url, max(10, seconds / 5), clients)
    warm.fill_cache()
    warm.run()  # what the allocator keeps is kept by then
    before = resident(pid)
    load = Load(url, seconds, clients)
    load.run()
    for _ in range(100):
        if load.metric("vllm:num_requests_running") + load.metric("vllm:num_requests_waiting") == 0:
            break
        time.sleep(0.1)
    used, after = load.metric("vllm:kv_cache_usage_perc"), resident(pid)
    p99 = sorted(load.health)[int(len(load.health) * 0.99)]
    print(f"{clients} clients, {seconds} s: {load.counts}")
    print(f"wrong: {load.wrong[:5]} ({len(load.wrong)}); resident {before} -> {after} KiB ({100 * (after / before - 1):+.2f}%); "
          f"/health p99 {1000 * p99:.1f} ms of {len(load.health)}; cache in use {used}; preemptions {load.metric('vllm:num_preemptions_total'):.0f}")
    return bool(load.wrong or warm.wrong) or used != 0 or after > 1.02 * before or p99 > 0.1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].rstrip("/"), int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 300,
                  int(sys.argv[4]) if len(sys.argv) > 4 else 64))
