#!/usr/bin/env python3
"""What `plan` says beside what is measured: resident memory of a server whose cache is full.

    python3 bench/plan.py BINARY MODEL… [--ctx 512,2048] [--slots 1,4] [--kv bf16,int8]

For every configuration: `plan --json --memory-only`, a server with the same options, and as many prompts as fill
its context in every slot; then what /proc says is resident. Standard library only."""

import argparse, atexit, http.client, json, socket, statistics, subprocess, sys, threading, time


def resident(pid):
    rows = dict(line.split(":") for line in open(f"/proc/{pid}/status") if line.startswith("Rss"))
    return {name: int(value.split()[0]) * 1024 for name, value in rows.items()}


def fill(port, seed, tokens):
    """A prompt of that many token ids (two are kept for the answer)."""
    body = {"prompt": [100 + (seed * 7919 + i * 31) % 4000 for i in range(tokens - 2)], "max_tokens": 2, "temperature": 0}
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    c.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    reply = c.getresponse()
    text = reply.read().decode()
    if reply.status != 200:
        sys.exit(text)


def measure(binary, options, context, slots):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = subprocess.Popen([binary, "serve", *options, "--port", str(port)],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(server.kill)
    for _ in range(3000):
        try:
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            c.request("GET", "/readyz")
            if c.getresponse().status == 200:
                break
        except OSError:
            if server.poll() is not None:
                sys.exit("the server ended: " + " ".join(options))
        time.sleep(0.02)
    loaded = resident(server.pid)
    clients = [threading.Thread(target=fill, args=(port, seed, context)) for seed in range(slots)]
    [t.start() for t in clients]
    [t.join() for t in clients]
    full = resident(server.pid)
    server.kill()
    server.wait()
    return loaded, full


def main():
    p = argparse.ArgumentParser()
    p.add_argument("binary"), p.add_argument("models", nargs="+")
    p.add_argument("--ctx", default="512,2048"), p.add_argument("--slots", default="1,4")
    p.add_argument("--kv", default="bf16,int8")
    args = p.parse_args()
    errors = []
    for model in args.models:
        for kv in args.kv.split(","):
            for context in map(int, args.ctx.split(",")):
                for slots in map(int, args.slots.split(",")):
                    options = [model, "--ctx", str(context), "--slots", str(slots), "--kv", kv]
                    said = json.loads(subprocess.check_output(
                        [args.binary, "plan", *options, "--json", "--memory-only"], stderr=subprocess.DEVNULL))
                    needed = said["memory"]["needed_bytes"]
                    loaded, full = measure(args.binary, options, context, slots)
                    total = full["RssAnon"] + full["RssShmem"]
                    errors.append(needed / total - 1)
                    mib = {k: round(v / 2**20) for k, v in
                           [("said", needed), ("full", total), ("file", full["RssFile"]), ("loaded", loaded["RssAnon"])]}
                    parts = {k: round(v / 2**20) for k, v in said["memory"].items() if k.endswith("bytes") and k != "token_bytes"}
                    print(model.split("/")[-1], f"ctx {context} slots {slots} {kv}:", mib, f"{100 * errors[-1]:+.1f} %", parts, flush=True)
    print(f"{len(errors)} configurations: from {100 * min(errors):+.1f} to {100 * max(errors):+.1f} %, "
          f"median {100 * statistics.median(errors):+.1f} %")


main()
