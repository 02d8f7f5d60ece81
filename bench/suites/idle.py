#!/usr/bin/env python3
"""Ten thousand connections that ask nothing: what each takes of the server, and whether others notice.

    tokenmill serve MODEL --ctx 2048 --slots 4
    python3 bench/suites/idle.py [URL] [--connections 10000] [--pid PID] [--key KEY]

Connections come from several addresses of the loopback network, half of them with a part of a request's head. Then /health
and a completion of one token are asked 50 times each, as before; and a hundred of the connections send the rest of their
request, each of which must be answered. With --pid the server's memory and open files are read from /proc. The server needs
that many open files (`ulimit -n`), and so does this script: what is not allowed is said, and fewer are opened. Ends with 1
where a connection was lost or a request failed. Standard library only."""

import argparse, http.client, json, random, resource, socket, statistics, sys, time, urllib.parse

random.seed(7)
HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\nx-padding: "


def allowed(wanted):
    """Open files for so many connections, as far as the system goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + 100
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return wanted if most >= needed else max(0, most - 100)


def memory(pid):
    """Resident KiB of the process's own, and its open files."""
    import os
    lines = open(f"/proc/{pid}/status").read().splitlines()
    anon = next(int(l.split()[1]) for l in lines if l.startswith("RssAnon:"))
    return anon, len(os.listdir(f"/proc/{pid}/fd"))


def asked(server, key, method, path, body, times=50):
    """Milliseconds of each request, on a connection of its own."""
    found = []
    for _ in range(times):
        begin = time.monotonic()
        peer = http.client.HTTPConnection(*server, timeout=60)
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        peer.request(method, path, body=json.dumps(body) if body else None, headers=headers)
        answer = peer.getresponse()
        text = answer.read()
        peer.close()
        if answer.status != 200:
            sys.exit(f"{method} {path}: {answer.status} {text[:200]!r}")
        found.append((time.monotonic() - begin) * 1e3)
    return found


def told(name, before, during):
    row = lambda ms: f"{statistics.median(ms):8.2f} {sorted(ms)[int(0.95 * len(ms))]:8.2f} {max(ms):8.2f}"
    print(f"{name:<12} {row(before)}   {row(during)}")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("url", nargs="?", default="http://127.0.0.1:8080")
    args.add_argument("--connections", type=int, default=10_000)
    args.add_argument("--pid", type=int)
    args.add_argument("--key")
    args = args.parse_args()
    url = urllib.parse.urlsplit(args.url)
    server = (url.hostname, url.port or 80)
    count = allowed(args.connections)
    if count < args.connections:
        print(f"the system allows {count} connections of {args.connections}")
    one = {"prompt": "a", "max_tokens": 1}
    asks = [("/health", "GET", "/health", None), ("one token", "POST", "/v1/completions", one)]
    before = [asked(server, args.key, *ask[1:]) for ask in asks]
    start = memory(args.pid) if args.pid else None
    begin = time.monotonic()
    crowd = []
    for i in range(count):
        peer = socket.socket()
        # One address has some 28 000 ports.
        peer.bind((f"127.0.0.{1 + i % 8}", 0)) if server[0].startswith("127.") else None
        peer.settimeout(60)
        peer.connect(server)
        sent = 0 if i % 2 == 0 else random.randrange(1, len(HEAD))
        peer.sendall(HEAD[:sent])
        crowd.append((peer, sent))
    print(f"{count} connections in {time.monotonic() - begin:.1f} s")
    time.sleep(1)
    if start:
        end = memory(args.pid)
        each = (end[0] - start[0]) / max(1, count)
        print(f"the server: {start[0]} to {end[0]} KiB of its own ({each:.2f} KiB each), {start[1]} to {end[1]} open files")
    during = [asked(server, args.key, *ask[1:]) for ask in asks]
    print("ms             median      p95      max     median      p95      max  (idle, then beside the crowd)")
    for (name, *_), a, b in zip(asks, before, during):
        told(name, a, b)
    lost = 0
    for peer, sent in random.sample(crowd, min(100, count)):
        try:
            peer.sendall(HEAD[sent:] + b"y\r\nConnection: close\r\n\r\n")
            lost += not peer.recv(64).startswith(b"HTTP/1.1 200")
        except OSError:
            lost += 1
    print(f"{lost} of 100 connections were lost")
    for peer, _ in crowd:
        peer.close()
    sys.exit(1 if lost else 0)


main()
