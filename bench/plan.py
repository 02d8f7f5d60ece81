#!/usr/bin/env python3
"""What `plan` says beside what is measured: memory of a server that has done its largest steps, and speed.

    python3 bench/plan.py memory BINARY MODEL… [--ctx 512,2048] [--slots 1,4] [--kv bf16,int8]
    python3 bench/plan.py speed BINARY MODEL… [--ctx 1536] [--batch 4,16] [--threads 1,2] [--rounds 3] [--reps 3]

memory: for every configuration `plan --json --memory-only`, a server with the same options, and as many prompts as fill
its context in every slot, sampled with penalties and log-probabilities, then as many that repeat a pattern, so that
drafts may start; then what /proc says is resident: all of it, mapped pages of the program too.
speed: `plan --json` and `bench` of the same steps in turn, medians. Standard library only."""

import argparse, atexit, http.client, json, socket, statistics, subprocess, sys, threading, time


def resident(pid):
    rows = dict(line.split(":") for line in open(f"/proc/{pid}/status") if line.startswith(("Rss", "VmRSS")))
    return {name: int(value.split()[0]) * 1024 for name, value in rows.items()}


def ask(port, body):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    c.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    reply = c.getresponse()
    text = reply.read().decode()
    if reply.status != 200:
        sys.exit(text)


def fill(port, seed, context):
    """A prompt that leaves room for a few tokens of answer, then one that repeats a pattern."""
    answer = min(48, context // 4)
    body = {"prompt": [100 + (seed * 7919 + i * 31) % 4000 for i in range(context - answer)], "max_tokens": answer,
            "temperature": 0.7, "top_p": 0.95, "logprobs": 5, "presence_penalty": 0.1}
    ask(port, body)
    pattern = [200 + seed * 10 + i for i in range(8)]
    ask(port, {"prompt": (pattern * context)[:context - answer], "max_tokens": answer, "temperature": 0})


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


def said(binary, options):
    return json.loads(subprocess.check_output([binary, "plan", *options, "--json"], stderr=subprocess.DEVNULL))


def memory(args):
    print("| model | KV | context × streams | said, MB | resident, MB | difference | mapped | loaded |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    errors = []
    for model, kv, context, slots in [(m, k, c, s) for m in args.models for k in args.kv.split(",")
                                      for c in map(int, args.ctx.split(",")) for s in map(int, args.slots.split(","))]:
        options = [model, "--ctx", str(context), "--slots", str(slots), "--kv", kv]
        parts = said(args.binary, [*options, "--memory-only"])["memory"]
        loaded, full = measure(args.binary, options, context, slots)
        errors.append(parts["needed_bytes"] / full["VmRSS"] - 1)
        mb = [f"{x / 1e6:.1f}" for x in (parts["needed_bytes"], full["VmRSS"])]
        rest = [f"{x / 1e6:.1f}" for x in (full["RssFile"], loaded["VmRSS"])]
        cells = [model.split("/")[-1], kv, f"{context} × {slots}", *mb, f"{100 * errors[-1]:+.1f} %", *rest]
        print("| " + " | ".join(cells) + " |", flush=True)
        if args.parts:
            print({k: round(v / 1e6, 1) for k, v in parts.items() if k.endswith("_bytes")}, flush=True)
    summary(errors)


def bench(binary, model, threads, flags):
    command = [binary, "bench", model, "--json", "-t", threads, *flags]
    lines = subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True).splitlines()
    return [(line["test"], line["tok_s"]["median"]) for line in map(json.loads, lines)]


def speed(args):
    print("| model | threads | step | said, tok/s | measured, tok/s | difference |")
    print("|---|---:|---|---:|---:|---:|")
    errors, context = [], args.ctx
    for model, threads in [(m, t) for m in args.models for t in args.threads.split(",")]:
        batches = args.batch.split(",")
        found = {}  # step -> ([said], [measured])
        for _ in range(args.rounds):
            for b in batches:
                options = [model, "--ctx", str(context), "--slots", b, "-t", threads]
                for t in said(args.binary, options)["speed"]:
                    found.setdefault(t["test"], ([], []))[0].append(t["tok_s"])
            # Decoding from a few tokens before the context that was timed to a few behind it.
            run = ["-r", str(args.reps), "--ctx", str(context)]
            tests = bench(args.binary, model, threads, ["-p", "512", "-n", "16", "--depth", "119", "--batch",
                                                        ",".join(["1", *batches]), *run])
            tests += bench(args.binary, model, threads, ["-p", "32", "-n", "8", "--depth", str(context - 8), "-r", "1",
                                                         "--ctx", str(context)])[1:]
            names = ["pp512", "tg @127", *(f"tg @127 x{b}" for b in batches), f"tg @{context - 1}"]
            for name, (_, rate) in zip(names, tests, strict=True):
                found.setdefault(name, ([], []))[1].append(rate)
        for name, pair in found.items():
            if not all(pair):
                continue  # short contexts have no step near their end
            guess, rate = map(statistics.median, pair)
            errors.append(guess / rate - 1)
            cells = [model.split("/")[-1], threads, name, f"{guess:.1f}", f"{rate:.1f}", f"{100 * errors[-1]:+.0f} %"]
            print("| " + " | ".join(cells) + " |", flush=True)
    summary(errors)


def summary(errors):
    print(f"{len(errors)} configurations: from {100 * min(errors):+.1f} to {100 * max(errors):+.1f} %, "
          f"median {100 * statistics.median(errors):+.1f} %")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = p.add_subparsers(required=True)
    m, s = kinds.add_parser("memory"), kinds.add_parser("speed")
    for kind, run in [(m, memory), (s, speed)]:
        kind.add_argument("binary"), kind.add_argument("models", nargs="+")
        kind.set_defaults(run=run)
    m.add_argument("--ctx", default="512,2048"), m.add_argument("--slots", default="1,4")
    m.add_argument("--kv", default="bf16,int8"), m.add_argument("--parts", action="store_true")
    s.add_argument("--ctx", type=int, default=1536), s.add_argument("--batch", default="4,16")
    s.add_argument("--threads", default="2"), s.add_argument("--rounds", type=int, default=3)
    s.add_argument("--reps", type=int, default=3)
    args = p.parse_args()
    args.run(args)


main()
