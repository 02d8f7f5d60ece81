#!/usr/bin/env python3
"""Time to first token of a long prompt: cold, and after kill -9 and a restart with the cache on disk.

    python3 bench/restart.py BINARY MODEL [--tokens 8000] [--rounds 5] [--dropped] [SERVE OPTIONS…]

Each round: an empty folder, a server, the prompt cold; when the cache is written, kill -9; a new
server, the same prompt. --dropped takes the segments out of the page cache before the restart, so
that the disk itself is read. Answers must be equal. Standard library only."""

import argparse, atexit, http.client, json, os, shutil, signal, socket, statistics, subprocess, sys, tempfile, time

WORDS = ("the river old stone under bright morning window seven letters quiet engine harbour "
         "never copper field paper answer garden winter number silver north").split()


def prompt(count, seed):
    state, out = seed, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(WORDS[(state >> 33) % len(WORDS)])
    return " ".join(out)


class Server:
    def __init__(self, args, folder):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        command = [args.binary, "serve", args.model, "--port", str(self.port), "--slots", "1"]
        command += ["--kv-dir", folder, *args.options]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while True:
            try:
                if self.get("/readyz")[0] == 200:
                    return
            except OSError:
                if self.process.poll() is not None:
                    sys.exit("the server ended: " + " ".join(command))
            time.sleep(0.02)

    def get(self, path):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        c.request("GET", path)
        r = c.getresponse()
        return r.status, r.read().decode()

    def ask(self, text):
        body = {"prompt": text, "max_tokens": 16, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        start = time.monotonic()
        c.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            sys.exit(r.read().decode())
        first, answer, usage = None, "", None
        for line in r:
            if not line.startswith(b"data: ") or b"[DONE]" in line:
                continue
            event = json.loads(line[6:])
            if event.get("choices"):
                first = first or time.monotonic() - start
                answer += event["choices"][0]["text"]
            usage = event.get("usage") or usage
        return first, answer, usage

    def metric(self, name):
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(name) and line[len(name)] in " {":
                return float(line.split()[-1])
        sys.exit(f"no metric {name}")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def drop(folder):
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("binary"), p.add_argument("model")
    p.add_argument("--tokens", type=int, default=8000)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--dropped", action="store_true")
    args, args.options = p.parse_known_args()
    cold, warm = [], []
    for seed in range(args.rounds):
        folder = tempfile.mkdtemp()
        try:
            # About a token a word; cut to what the model takes.
            text = prompt(args.tokens, seed)
            server = Server(args, folder)
            atexit.register(server.kill)
            t, expected, usage = server.ask(text)
            cold.append(t)
            runs = (usage["prompt_tokens"] - 1) // 256
            while server.metric("tokenmill_disk_runs_written_total") < runs:
                time.sleep(0.05)
            server.kill()
            if args.dropped:
                drop(folder)
            server = Server(args, folder)
            atexit.register(server.kill)
            t, answer, usage = server.ask(text)
            warm.append(t)
            server.kill()
            if answer != expected:
                sys.exit(f"another answer: {answer!r}, expected {expected!r}")
            disk = usage["prompt_tokens_details"]["disk_tokens"]
            size = sum(os.path.getsize(os.path.join(folder, n)) for n in os.listdir(folder))
            print(f"{usage['prompt_tokens']} tokens, {disk} from disk ({size / 2**20:.0f} MiB): "
                  f"cold {cold[-1]:.3f} s, restarted {t:.3f} s", flush=True)
        finally:
            shutil.rmtree(folder)
    c, w = statistics.median(cold), statistics.median(warm)
    print(f"median: cold {c:.3f} s, restarted {w:.3f} s, {100 * w / c:.1f} %; answers equal")


main()
