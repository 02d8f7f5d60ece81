#!/usr/bin/env python3
"""Fifty receipts of a mixed load on real models, replayed.

    bench/suites/receipts.py QWEN.gguf SMOL.gguf [--binary PATH] [--requests 50] > receipts.txt

One server with both models keeps a receipt of every answer (`serve --receipts`). Eight clients at once ask both models for chats, streams,
tools, schemas, texts that repeat themselves (so that drafts run), reasoning of other dialects, with seeds and temperatures of all kinds. Then
`tokenmill replay` asks each again, alone and in another order, of a server started anew with another number of slots and with drafts off:
each must give the same answer. Last, a server whose KV format is another one: each receipt must name it. Standard library only."""

import argparse, collections, concurrent.futures, http.client, json, os, random, shutil, socket, subprocess, sys, tempfile, time

TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"},
          "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 4}}, "required": ["name", "age"], "additionalProperties": False}


def body(number, models):
    """(kind, route, body) of a request."""
    draw = random.Random(number)
    model = models[number % len(models)]
    words = " ".join(draw.choice("river stone quick lamp seven cloud paper north".split()) for _ in range(draw.randint(3, 120)))
    how = {"model": model, "seed": number, "temperature": draw.choice([0, 0.3, 0.8, 1.2]), "max_tokens": draw.randint(8, 60)}
    said = [{"role": "user", "content": f"Tell of {words}."}]
    kind = ("chat", "stream", "tool", "schema", "repeats", "messages", "responses", "completion")[number // len(models) % 8]
    if kind == "tool":
        return kind, "/v1/chat/completions", how | {"messages": said, "tools": [TOOL], "tool_choice": "required"}
    if kind == "schema":
        form = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA, "strict": True}}
        return kind, "/v1/chat/completions", how | {"messages": said, "response_format": form}
    if kind == "repeats":
        text = "one two three four five six seven eight. " * 12
        return kind, "/v1/completions", how | {"prompt": text, "temperature": 0}
    if kind == "messages":
        del how["seed"]
        return kind, "/v1/messages", how | {"messages": said, "temperature": min(how["temperature"], 1)}
    if kind == "responses":
        how["max_output_tokens"] = how.pop("max_tokens")
        del how["seed"]
        return kind, "/v1/responses", how | {"input": words}
    if kind == "completion":
        return kind, "/v1/completions", how | {"prompt": words, "n": 2, "logprobs": 2}
    return kind, "/v1/chat/completions", how | {"messages": said, "stream": kind == "stream"}


class Server:
    def __init__(self, binary, models, flags):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        command = [binary, "serve", *models, "--port", str(self.port), "--quiet", "--ctx", "2048", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                if self.ask("GET", "/readyz")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        sys.exit("no server: " + " ".join(command))

    def ask(self, method, path, body=None):
        peer = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        peer.request(method, path, json.dumps(body) if body else None, {"content-type": "application/json"})
        answer = peer.getresponse()
        return answer.status, answer.read()

    def end(self):
        self.process.terminate()
        self.process.wait()


def replay(binary, server, path):
    done = subprocess.run([binary, "replay", path, "--url", f"http://127.0.0.1:{server.port}"], capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs=2)
    parser.add_argument("--binary", default=shutil.which("tokenmill") or "target/release/tokenmill")
    parser.add_argument("--requests", type=int, default=50)
    args = parser.parse_args()
    names = [os.path.basename(m).removesuffix(".gguf") for m in args.models]
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args.binary, args.models, ["--receipts", folder, "--slots", "8"])
        requests = [body(n, names) for n in range(args.requests)]
        with concurrent.futures.ThreadPoolExecutor(8) as clients:
            answers = list(clients.map(lambda r: server.ask("POST", r[1], r[2]), requests))
        server.end()
        refused = [(r[0], a) for r, a in zip(requests, answers) if a[0] != 200]
        receipts = sorted(os.path.join(folder, name) for name in os.listdir(folder))
        print(f"{len(answers)} answers of {names}, {len(refused)} refused, {len(receipts)} receipts:",
              dict(collections.Counter(r[0] for r in requests)))
        for kind, (status, text) in refused:
            print("refused:", kind, status, text[:300])
        random.Random(1).shuffle(receipts)
        server = Server(args.binary, args.models, ["--slots", "3", "--draft", "none"])
        same = [replay(args.binary, server, path) for path in receipts]
        server.end()
        print(f"replayed with 3 slots, no drafts, one by one: {sum('the same answer' in s and not c for c, s in same)} of {len(same)} the same answer")
        for code, text in same:
            if code or "the same answer" not in text:
                print(code, text)
        server = Server(args.binary, args.models, ["--slots", "3", "--kv", "int8"])
        named = [replay(args.binary, server, path) for path in receipts]
        server.end()
        by_name = sum("the KV format" in text for _, text in named)
        print(f"replayed with the caches in int8: {by_name} of {len(named)} name the KV format")
        bad = refused or len(receipts) != len(answers) or any(c or "the same" not in s for c, s in same) or by_name != len(named)
        sys.exit(bool(bad))


if __name__ == "__main__":
    main()
