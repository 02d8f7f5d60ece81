#!/usr/bin/env python3
"""One client against all: how long another account's small request takes while a client does its worst.

    tokenmill serve MODEL --ctx 8192 --slots 8 --api-key A --api-key B
    python3 bench/suites/crowds.py [URL] [--seconds 8] [--step 0.1] [--only NAME]

B asks for one token after a short prompt, four times a second: idle first, then while A attacks in each of the ways
below. Asked: at most three times the idle time (its median) and three steps; 1 s where clients are gone whose long
prompts are read. Last of all a fixed greedy answer must have the bytes it had before. Standard library only."""

import argparse, json, random, resource, socket, statistics, sys, threading, time, urllib.parse

random.seed(7)


class Attack:
    """What a client does until it is stopped."""

    def __init__(self, server):
        self.server, self.open, self.over = server, [], threading.Event()

    def connect(self):
        peer = socket.create_connection(self.server, timeout=30)
        self.open.append(peer)
        return peer

    def send(self, body, headers="", length=None, key="A", path="/v1/completions"):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        peer = self.connect()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n{headers}"
        head += f"content-type: application/json\r\ncontent-length: {length or len(body)}\r\n\r\n"
        try:
            peer.sendall(head.encode() + body)
        except OSError:
            pass  # refused before it was sent
        return peer

    def again(self, threads, once):
        def loop():
            while not self.over.is_set():
                try:
                    once()
                except OSError:
                    time.sleep(0.05)
        for _ in range(threads):
            threading.Thread(target=loop, daemon=True).start()

    def stop(self):
        self.over.set()
        for peer in self.open:
            peer.close()


def bodies_that_never_come(a):
    for _ in range(1100):
        a.send(b'{"pro', length=60)


def large_bodies_that_stop(a):
    part = b'{"prompt":"' + b"x" * (20 << 20)
    a.again(8, lambda: (a.send(part, length=31 << 20), time.sleep(3)))


def long_prompts_of_clients_gone(a):
    body = {"prompt": "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=8 << 20)), "max_tokens": 1}
    data = json.dumps(body).encode()

    def once():
        peer = a.send(data)
        time.sleep(0.7)
        peer.close()
    a.again(4, once)


def drain(peer):
    while peer.recv(1 << 16):
        pass


def urgent_requests(a):
    body = {"prompt": "Tell me more.", "max_tokens": 200, "ignore_eos": True, "priority": -(1 << 31)}
    a.again(24, lambda: drain(a.send(body, headers="connection: close\r\n")))


def silent_connections(a):
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    for i in range(min(soft - 200, 12_000)):
        peer = a.connect()
        if i % 2:
            peer.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: loc")


def middling_prompts(a):
    words = ["lorem ", "ipsum ", "dolor ", "sit "]
    text = "".join(random.choices(words, k=80_000))
    data = json.dumps({"prompt": text, "max_tokens": 1}).encode()
    a.again(32, lambda: drain(a.send(data, headers="connection: close\r\n")))


def long_prompts_one_by_one(a):
    text = "".join(random.choices(["alpha ", "beta ", "house ", "tree "], k=7_300))
    data = lambda: json.dumps({"prompt": f"{random.random()} {text}", "max_tokens": 1}).encode()
    a.again(1, lambda: drain(a.send(data(), headers="connection: close\r\n")))


def readers_that_do_not_read(a):
    body = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "n": 8, "logprobs": 20, "stream": True}
    for _ in range(8):
        a.send(body)


def bodies_of_many_values(a):
    data = b'{"prompt":[' + b",".join(b"[1,2,3,4]" for _ in range(200_000)) + b"]}"
    a.again(8, lambda: drain(a.send(data, headers="connection: close\r\n")))


WAYS = [bodies_that_never_come, large_bodies_that_stop, long_prompts_of_clients_gone, urgent_requests,
        silent_connections, middling_prompts, long_prompts_one_by_one,
        readers_that_do_not_read, bodies_of_many_values]


def ask(server, body):
    """An answer of B's and how long it took, seconds."""
    a, start = Attack(server), time.perf_counter()
    peer, data = a.send(body, headers="connection: close\r\n", key="B"), b""
    while part := peer.recv(1 << 16):
        data += part
    took = time.perf_counter() - start
    peer.close()
    if not data.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"B was told: {data[:400]!r}")
    return took, json.loads(data.split(b"\r\n\r\n", 1)[1])["choices"][0]["text"]


def times(server, seconds):
    small, end, found = {"prompt": "a", "max_tokens": 1}, time.perf_counter() + seconds, []
    while time.perf_counter() < end:
        found.append(ask(server, small)[0])
        time.sleep(max(0.0, 0.25 - found[-1]))
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8080")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--step", type=float, default=0.1, help="the server's step_s")
    parser.add_argument("--only")
    args = parser.parse_args()
    url = urllib.parse.urlparse(args.url)
    server = (url.hostname, url.port)
    fixed = {"prompt": "The capital of France is", "max_tokens": 32, "temperature": 0}
    before = ask(server, fixed)[1]
    idle = statistics.median(times(server, args.seconds))
    print(f"idle: {1e3 * idle:.0f} ms; asked: {1e3 * (3 * idle + 3 * args.step):.0f} ms, 1000 where clients are gone")
    failed = False
    for way in WAYS:
        if args.only and args.only != way.__name__:
            continue
        attack = Attack(server)
        most = 1.0 if way is long_prompts_of_clients_gone else 3 * idle + 3 * args.step
        begun = threading.Thread(target=way, args=(attack,), daemon=True)
        begun.start()
        time.sleep(1)
        found = times(server, args.seconds)
        attack.stop()
        worst = max(found)
        failed |= worst > most
        print(f"{way.__name__:32} median {1e3 * statistics.median(found):6.0f} ms, worst {1e3 * worst:6.0f}"
              f"{'  TOO LONG' if worst > most else ''}", flush=True)
        time.sleep(2)
    same = ask(server, fixed)[1] == before
    print("the fixed answer is", "the same" if same else "ANOTHER")
    sys.exit(failed or not same)


if __name__ == "__main__":
    main()
