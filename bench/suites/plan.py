#!/usr/bin/env python3
"""What `plan` says beside what is: memory of a server that has done its largest steps, and speed of `bench`.

    python3 bench/suites/plan.py BINARY MODEL… [--settings 512x1,2048x1,2048x4] [--kv int16,int8] [--rounds 3] [--part memory|speed]

MODEL is a file, a folder or a name. For every model and setting (context x streams):
memory  `plan --json --memory-only`, a server with the same options, as many prompts as fill its context in every
        slot, sampled with penalties and log-probabilities, then as many that repeat a pattern, so that drafts may
        start; then VmRSS of /proc/PID/status, which is RssAnon (weights in the device's layout, caches, buffers) and
        RssFile (weights that are read where they lie, pages of the program). `plan` counts all of these.
speed   `plan --json` twice: from ceilings and usual shares (--memory-only after the ceilings were measured) and with
        the steps timed; beside `bench` of the same prompt, depth and streams. In turn, medians over the rounds.
Targets: memory within 3 %, speed (timed) within 20 %. Nothing else should run. Standard library only."""

import argparse, atexit, http.client, json, socket, statistics, subprocess, sys, threading, time

TARGETS = {"memory": 3, "timed": 20}


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


def fill(port, seed, context, ids):
    """A prompt that leaves room for a few tokens of answer, then one that repeats a pattern."""
    answer, most = min(48, context // 4), max(ids - 300, 1)
    body = {"prompt": [100 + (seed * 7919 + i * 31) % most for i in range(context - answer)], "max_tokens": answer,
            "temperature": 0.7, "top_p": 0.95, "logprobs": 5, "presence_penalty": 0.1}
    ask(port, body)
    pattern = [200 + seed % 8 * 10 + i for i in range(8)]
    ask(port, {"prompt": (pattern * context)[:context - answer], "max_tokens": answer, "temperature": 0})


def measure(binary, options, context, streams, ids):
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
    clients = [threading.Thread(target=fill, args=(port, seed, context, ids)) for seed in range(streams)]
    [t.start() for t in clients]
    [t.join() for t in clients]
    full = resident(server.pid)
    server.kill()
    server.wait()
    return full


def said(binary, options):
    return json.loads(subprocess.check_output([binary, "plan", *options, "--json"], stderr=subprocess.DEVNULL))


def bench(binary, options, flags):
    command = [binary, "bench", *options, "--json", *flags]
    lines = subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True).splitlines()
    return [line["tok_s"]["median"] for line in map(json.loads, lines)]


def percent(guess, found):
    return 100 * (guess / found - 1)


def settings(args):
    for model in args.models:
        for kv in args.kv.split(","):
            for setting in args.settings.split(","):
                context, streams = map(int, setting.split("x"))
                name = model.rstrip("/").split("/")[-1]
                yield model, name, kv, context, streams, [model, "--kv", kv, "--ctx", str(context)]


def memory(args):
    print("| model | KV | context × streams | said, MB | resident, MB | difference | anonymous | mapped |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    errors = []
    for _, name, kv, context, streams, options in settings(args):
        options = [*options, "--slots", str(streams)]
        plan = said(args.binary, [*options, "--memory-only"])
        full = measure(args.binary, options, context, streams, args.ids)
        needed = plan["memory"]["needed_bytes"]
        errors.append(percent(needed, full["VmRSS"]))
        mb = [f"{x / 1e6:.1f}" for x in (needed, full["VmRSS"])]
        rest = [f"{full[x] / 1e6:.1f}" for x in ("RssAnon", "RssFile")]
        cells = [name, kv, f"{context} × {streams}", *mb, f"{errors[-1]:+.1f} %", *rest]
        print("| " + " | ".join(cells) + " |", flush=True)
    summary("memory", errors)


def speed(args):
    print("| model | KV | context × streams | step | by ceilings | timed | measured | by ceilings | timed |")
    print("|---|---|---|---|---:|---:|---:|---:|---:|")
    errors = {"by ceilings": [], "timed": []}
    for model, name, kv, context, streams, options in settings(args):
        found = {}  # step -> (by ceilings, timed, measured), a list each
        for _ in range(args.rounds):
            timed = said(args.binary, [*options, "--slots", str(streams)])["chosen"]["speed"]
            usual = said(args.binary, [*options, "--slots", str(streams), "--memory-only"])["chosen"]["speed"]
            prompt, depth, n = timed["prompt"], timed["depth"], timed["streams"]
            flags = ["-r", str(args.reps)]
            pp = bench(args.binary, options, ["-p", str(prompt), "-n", "0", *flags])
            at = max(min(depth - 8, context - 16), 0)
            tg = bench(args.binary, options, ["-p", "0", "-n", "16", "--depth", str(at), "--batch", str(n), *flags])
            steps = [(f"pp{prompt}", "prompt_tok_s", pp), (f"tg @{depth} x{n}", "all_tok_s", tg)]
            for step, member, rates in steps:
                if rates and usual[member]:
                    row = found.setdefault(step, ([], [], []))
                    [column.append(x) for column, x in zip(row, (usual[member], timed[member], rates[-1]))]
        for step, columns in found.items():
            guess, timed, rate = map(statistics.median, columns)
            both = (percent(guess, rate), percent(timed, rate))
            [errors[kind].append(x) for kind, x in zip(errors, both)]
            cells = [name, kv, f"{context} × {streams}", step, *(f"{x:.1f}" for x in (guess, timed, rate)),
                     *(f"{x:+.0f} %" for x in both)]
            print("| " + " | ".join(cells) + " |", flush=True)
    for kind, list_ in errors.items():
        summary(kind, list_)


def summary(kind, errors):
    if errors:
        most = TARGETS.get(kind)
        within = sum(abs(e) <= most for e in errors) if most else None
        target = f"; {within} within {most} %" if most else ""
        print(f"{kind}: {len(errors)} rows, from {min(errors):+.1f} to {max(errors):+.1f} %, "
              f"median {statistics.median(errors):+.1f} %{target}\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binary"), p.add_argument("models", nargs="+")
    p.add_argument("--settings", default="512x1,2048x1,2048x4", help="context x streams, with commas")
    p.add_argument("--kv", default="int16"), p.add_argument("--part", choices=["memory", "speed"])
    p.add_argument("--ids", type=int, default=4000, help="token ids of the prompts are below this")
    p.add_argument("--rounds", type=int, default=3), p.add_argument("--reps", type=int, default=3)
    args = p.parse_args()
    if args.part != "speed":
        memory(args)
    if args.part != "memory":
        said(args.binary, [args.models[0], "--measure"])  # ceilings of now
        speed(args)


main()
