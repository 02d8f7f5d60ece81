#!/usr/bin/env python3
"""Sessions of coding agents against tokenmill and llama-server in turn: one table.

    bench/suites/agent_workload.py QWEN.gguf --peer /path/to/llama-server [--rounds 3] [--api chat] > agent_workload.txt

Each round starts each server anew with the same context for each slot, slots and threads, plays `bench serve --workload agent` of one seed
with a seeded history (both are asked the same prompts, and with --api chat for answers of the same length), and ends it. Sessions, turns and
agents are flags; qwen's first prompt takes 18 000 tokens, so --ctx below 32k wants --agents without it. Needs a quiet machine.

The peer, from the source that llama-cpp-python 0.3.36 carries (ggml 0.25.3):
    cmake -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DBUILD_SHARED_LIBS=OFF \\
        -DGGML_AMX_TILE=OFF -DGGML_AMX_INT8=OFF -DGGML_AMX_BF16=OFF && cmake --build build --target llama-server
(AMX is off, for its CPU backend crashed with it on one of our machines.) It runs with --jinja, its prompt cache on (the default), and a
context of its own for each slot."""

import argparse, json, os, shutil, signal, statistics, subprocess, sys, tempfile, time, urllib.request

PORT = 8098
COLUMNS = [
    # name, where in the JSON, format, whether more is better
    ("speed tok/s", lambda r: r["p90_tok_s"], "{:.3f}", True),
    ("tok/s out", lambda r: r["out_tok_s"], "{:.2f}", True),
    ("TTFT p50 s", lambda r: r["ttft_ms"]["p50"] / 1e3, "{:.2f}", False),
    ("p90 s", lambda r: r["ttft_ms"]["p90"] / 1e3, "{:.2f}", False),
    ("gap p50 ms", lambda r: r["itl_ms"]["p50"], "{:.1f}", False),
    ("p99 ms", lambda r: r["itl_ms"]["p99"], "{:.1f}", False),
    ("cached %", lambda r: 100 * r["cached_tok"] / max(r["in_tok"], 1) if r["cached_tok"] is not None else None, "{:.1f}", True),
    ("wall s", lambda r: r["wall_s"], "{:.1f}", False),
]


def commands(args):
    """How each server is started."""
    threads, slots = str(args.threads), str(args.slots)
    found = {"tokenmill": [args.binary, "serve", args.model, "--port", str(PORT), "--ctx", str(args.ctx), "--slots", slots,
                           "--threads", threads, "--quiet"]}
    if args.peer:
        found["llama-server"] = [args.peer, "-m", args.model, "--port", str(PORT), "-c", str(args.ctx * args.slots), "-np", slots,
                                 "-t", threads, "-tb", threads, "--jinja", "--no-webui"]
    return found


def start(command, log):
    server = subprocess.Popen(command, stdout=log, stderr=log)
    for _ in range(1200):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2):
                return server
        except OSError:
            if server.poll() is not None:
                break
            time.sleep(0.25)
    log.seek(0)
    server.kill()
    sys.exit(f"{' '.join(command)}\nis not ready; it said:\n{log.read().decode(errors='replace')[-2000:]}")


def play(args, name, command, number):
    """One round of one server: the JSON of `bench serve`."""
    with tempfile.TemporaryFile() as log:
        server = start(command, log)
        try:
            bench = [args.binary, "bench", "serve", f"http://127.0.0.1:{PORT}", "--workload", "agent", "--api", args.api, "--json",
                     "--sessions", str(args.sessions), "--turns", str(args.turns), "--answer-tokens", args.answer_tokens,
                     "--concurrency", str(args.concurrency), "--pause", str(args.pause), "--seed", str(args.seed),
                     "--prompt", args.results, "--timeout", "3600"]
            if args.agents:
                bench += ["--agents", args.agents]
            if args.reports:
                bench += ["--report", os.path.join(args.reports, f"{name}-{number}.html")]
            done = subprocess.run(bench, stdout=subprocess.PIPE)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
    if not done.stdout:
        sys.exit(f"{name}: bench serve ended with {done.returncode}")
    result = json.loads(done.stdout)
    row(name, number, [column(result) for _, column, _, _ in COLUMNS], result)
    return result


def row(name, number, values, result):
    shown = [form.format(value) if value is not None else "–" for value, (_, _, form, _) in zip(values, COLUMNS)]
    errors = ", ".join(f"{n} {kind}" for kind, n in result["errors_by_kind"].items()) or "none"
    shown += [f"{result['finished']}/{result['sessions']}", str(result["short"]), errors]
    print("| " + " | ".join([name, number, *shown]) + " |", flush=True)


def middle(rounds):
    """The median of each column over rounds."""
    told = [[value for value in map(column, rounds) if value is not None] for _, column, _, _ in COLUMNS]
    return [statistics.median(values) if values else None for values in told]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--binary", default=shutil.which("tokenmill") or "target/release/tokenmill")
    parser.add_argument("--peer", help="llama-server; without it tokenmill alone is measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--api", default="chat", choices=["chat", "responses", "messages"])
    parser.add_argument("--agents", help="names, comma between; all when left out")
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--answer-tokens", default="32..96")
    parser.add_argument("--results", default="lognormal:120:1", help="words of a tool's result")
    parser.add_argument("--pause", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ctx", type=int, default=32768, help="tokens of a slot")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--reports", help="a folder for a page of plots of each round")
    args = parser.parse_args()
    if args.reports:
        os.makedirs(args.reports, exist_ok=True)
    servers = commands(args)
    names = [name for name, _, _, _ in COLUMNS]
    print("| server | round | " + " | ".join([*names, "finished", "short answers", "errors"]) + " |")
    print("|---" * (len(names) + 5) + "|", flush=True)
    results = {name: [] for name in servers}
    for number in range(1, args.rounds + 1):
        # Who goes first changes, or one of them would always have the warmer machine.
        for name in list(servers)[:: 1 if number % 2 else -1]:
            results[name].append(play(args, name, servers[name], str(number)))
    medians = {name: middle(rounds) for name, rounds in results.items()}
    for name, rounds in results.items():
        row(name, "median", medians[name], rounds[-1])
    if args.peer:
        ours, theirs = medians["tokenmill"], medians["llama-server"]
        ratio = [None if not a or not b else a / b if more else b / a for a, b, (_, _, _, more) in zip(ours, theirs, COLUMNS)]
        print("| better by | | " + " | ".join("–" if r is None else f"{r:.2f} ×" for r in ratio) + " | | | |")
    finished = all(result["finished"] == result["sessions"] for rounds in results.values() for result in rounds)
    sys.exit(not finished)


if __name__ == "__main__":
    main()
