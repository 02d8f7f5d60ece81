#!/usr/bin/env python3
"""Four streams beside grammars made to cost much: the longest gap between two tokens, beside the bound that was promised.

    tokenmill serve MODEL --ctx 4096 --slots 16
    python3 bench/suites/hostile.py [URL] [--seconds 8] [--only NAME]

Four answers stream, first alone, then while eight clients at once send constraints of a kind below, again and again. A
gap is what a client sees between two tokens; the bound is the server's own (`tokenmill_token_gap_bound_seconds`: the
longest that it promised so far). What constraints came to is counted by status. Standard library only."""

import argparse, collections, http.client, json, threading, time, urllib.parse, urllib.request

DEEP = {"type": "array", "minItems": 1, "items": {"anyOf": [{"$ref": "#"}, {"type": "object", "additionalProperties": {"$ref": "#"}}]}}
MEMBERS = {f"member {i}": {"type": ["integer", "string"]} for i in range(400)}

KINDS = {
    "ambiguous without end": lambda i: {"grammar": "root ::= s\ns ::= s s | s s s | [0-9] | "},
    "hidden recursion": lambda i: {"grammar": 'root ::= a root "x" | "y"\na ::= | a a'},
    "states that double": lambda i: {"guided_regex": f"(a|b| )*a(a|b| ){{{40 + i % 20}}}"},
    "counts of counts": lambda i: {"guided_regex": "((a|b){1,99}){1,99}"},
    "a megabyte of pattern": lambda i: {"response_format": schema({"type": "string", "pattern": "[ab]?" * (200_000 + i % 9)})},
    "a megabyte of text": lambda i: {"response_format": schema({"const": "known text " * 90_000 + str(i)})},
    "patterns at their limit": lambda i: {"response_format": schema({"type": "string", "pattern": "^(" + "|".join(f"[a-z]*{j + i}[a-z ]*" for j in range(300)) + ")$"})},
    "deep recursion": lambda i: {"response_format": schema(DEEP)},
    "four hundred members": lambda i: {"response_format": schema({"type": "object", "properties": MEMBERS})},
}


def schema(what):
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": what}}


class Server:
    def __init__(self, url):
        self.url, self.host = url, urllib.parse.urlparse(url).netloc
        with urllib.request.urlopen(url + "/v1/models") as answer:
            self.model = json.load(answer)["data"][0]["id"]

    def post(self, body):
        peer = http.client.HTTPConnection(self.host, timeout=300)
        body = {"model": self.model, "messages": [{"role": "user", "content": "Say a b."}], **body}
        peer.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        return peer.getresponse()

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name))


def stream(server, over, gaps):
    """Answers one after another; the gaps between their tokens."""
    while not over.is_set():
        answer = server.post({"stream": True, "max_tokens": 400, "ignore_eos": True, "draft": "none", "temperature": 1})
        last = None
        while line := answer.readline():
            if line.startswith(b"data: {"):
                now = time.monotonic()
                gaps.extend([] if last is None else [now - last])
                last = now
            if over.is_set():
                return


def attack(server, kind, over, told, first):
    for i in range(first, 1 << 30, 8):
        if over.is_set():
            return
        answer = server.post({**kind(i), "max_tokens": 60, "temperature": 1, "seed": i})
        answer.read()
        told[answer.status] += 1


def measure(server, name, kind, seconds):
    over, gaps, told = threading.Event(), [], collections.Counter()
    threads = [threading.Thread(target=stream, args=(server, over, gaps)) for _ in range(4)]
    if kind:
        threads += [threading.Thread(target=attack, args=(server, kind, over, told, i)) for i in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    over.set()
    for thread in threads:
        thread.join()
    gaps.sort()
    bound = server.metric("tokenmill_token_gap_bound_seconds")
    told = ", ".join(f"{count} × {status}" for status, count in sorted(told.items()))
    print(f"{name:<24} {len(gaps):6} tokens  median {gaps[len(gaps) // 2] * 1e3:6.1f} ms  longest {gaps[-1] * 1e3:7.1f} ms  "
          f"bound so far {bound * 1e3:7.1f} ms  {told}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8080")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--only")
    args = parser.parse_args()
    server = Server(args.url)
    measure(server, "alone", None, args.seconds)
    for name, kind in KINDS.items():
        if args.only in (None, name):
            measure(server, name, kind, args.seconds)
    longest, late = server.metric("tokenmill_token_gap_max_seconds"), server.metric("tokenmill_late_steps_total")
    print(f"the server's own: longest gap {longest * 1e3:.1f} ms, {late:.0f} steps later than promised")


if __name__ == "__main__":
    main()
