#!/usr/bin/env python3
"""What a shared beginning saves, and what a long prompt costs the stream beside it, on a running server.

    tokenmill serve MODEL --ctx 8192 --slots 2
    python3 bench/latency.py [URL] [--prefix 1500] [--long 8000] [--rounds 3]

One line a part. Prefix: time to first token of prompts that share all but 16 tokens, the first of each
beginning (cold) and the later ones (warm). Beside: gaps between two tokens of a stream alone and while the
long prompt is read, in turn. Prompts are token ids, drafts are off. Standard library only."""

import argparse, http.client, json, random, statistics, threading, time, urllib.parse


def ask(host, body):
    """Times at which pieces of the answer came, and that of asking."""
    c = http.client.HTTPConnection(host, timeout=600)
    start = time.perf_counter()
    body = dict(body, stream=True, draft="none")
    c.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    reply = c.getresponse()
    if reply.status != 200:
        raise SystemExit(reply.read().decode())
    return start, [time.perf_counter() for line in reply if line.startswith(b"data: {")]


def ids(rng, count):
    return [rng.randrange(100, 5000) for _ in range(count)]


def prefix(host, tokens, rounds):
    cold, warm = [], []
    for _ in range(rounds):
        rng = random.Random()
        shared = ids(rng, tokens)
        for k in range(6):
            start, times = ask(host, {"prompt": shared + ids(rng, 16), "max_tokens": 2, "temperature": 0})
            (warm if k else cold).append(1e3 * (times[0] - start))
    c, w = statistics.median(cold), statistics.median(warm)
    print(f"prefix of {tokens}: cold {c:.0f} ms, warm {w:.1f} ms, {100 * w / c:.1f} %", flush=True)


def part(gaps, p):
    gaps = sorted(gaps)
    return 1e3 * gaps[min(len(gaps) - 1, int(p * len(gaps)))]


def gaps(times, first=float("-inf"), last=float("inf")):
    return [b - a for a, b in zip(times, times[1:]) if first < a and b < last]


def stream(host):
    body = {"prompt": "Once upon a time", "max_tokens": 1500, "temperature": 0.8, "ignore_eos": True}
    return ask(host, body)[1]


def beside(host, tokens, rounds):
    for _ in range(rounds):
        idle, span, text = gaps(stream(host)), [], ids(random.Random(), tokens)

        def long():
            time.sleep(0.3)
            start, times = ask(host, {"prompt": text, "max_tokens": 1, "temperature": 0})
            span.extend([start, times[0]])

        reader, streams = threading.Thread(target=long), []
        reader.start()
        while reader.is_alive():
            streams.append(stream(host))
        reader.join()
        found = [gap for times in streams for gap in gaps(times, *span)]
        print(f"beside {tokens} tokens: idle p50 {part(idle, .5):.1f} p95 {part(idle, .95):.1f} ms, "
              f"beside p50 {part(found, .5):.0f} p95 {part(found, .95):.0f} max {part(found, 1):.0f} ms, "
              f"{part(found, .95) / part(idle, .95):.1f} times; the prompt took {span[1] - span[0]:.1f} s", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("url", nargs="?", default="http://127.0.0.1:8080")
    p.add_argument("--prefix", type=int, default=1500)
    p.add_argument("--long", type=int, default=8000)
    p.add_argument("--rounds", type=int, default=3)
    args = p.parse_args()
    host = urllib.parse.urlparse(args.url).netloc
    prefix(host, args.prefix, args.rounds)
    beside(host, args.long, args.rounds)


main()
