#!/usr/bin/env python3
"""Many models, many clients, the memory of some of them: clients ask one of the models at random, each waits for its answer.

    tokenmill serve A.gguf B.gguf … --keep-alive 5m --mem 2G --slots 4 --ctx 512
    python3 bench/suites/models.py [URL] --pid PID [--clients 16] [--minutes 10] [--key KEY]

Asked: every answer is 200 and the same as the first of its model, but stated 503s (with Retry-After, and `code`); what models
hold by /metrics is never above the cap; and the process's own memory (RssAnon), less what it had with nothing loaded, is never
above it either. Prints for each model how often it was there and how often it had to come, how long switches took (the whole
request, one token, less the same where the model is there), and at what part of the disk's or memory's speed: a model's bytes
over the median, beside what reading them again as a file takes (--files A.gguf B.gguf …, in the order of /v1/models).
Ends with 1 where anything asked does not hold. Standard library only."""

import argparse, collections, http.client, json, random, statistics, sys, threading, time, urllib.parse

PROMPT = "Models come and go, and each answers as it did before."


class Server:
    def __init__(self, url, key):
        url = urllib.parse.urlsplit(url)
        self.place, self.key = (url.hostname, url.port or 80), key

    def ask(self, method, path, body=None):
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {self.key}"} if self.key else {})
        peer = http.client.HTTPConnection(*self.place, timeout=600)
        peer.request(method, path, body=json.dumps(body) if body is not None else None, headers=headers)
        answer = peer.getresponse()
        text = answer.read()
        peer.close()
        return answer.status, dict(answer.getheaders()), text

    def models(self):
        return {m["id"]: m["status"] for m in json.loads(self.ask("GET", "/v1/models")[2])["data"]}

    def metric(self, name):
        page = self.ask("GET", "/metrics")[2].decode()
        return int(float(next(l.split()[1] for l in page.splitlines() if l.startswith(name + " "))))

    def completion(self, model, tokens):
        body = {"model": model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return self.ask("POST", "/v1/completions", body)


def own_bytes(pid):
    lines = open(f"/proc/{pid}/status").read().splitlines()
    return next(int(l.split()[1]) for l in lines if l.startswith("RssAnon:")) << 10


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def read_seconds(path):
    """How long reading the file takes, as it lies in the page cache or on the disk."""
    buffer, begin = bytearray(1 << 20), time.monotonic()
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.monotonic() - begin


def switches(server, names, rounds):
    """One client asks one model after the other: seconds of each whose model had to come, and of those that were there."""
    cold, warm = collections.defaultdict(list), collections.defaultdict(list)
    for _ in range(rounds):
        for name in names:
            for _ in range(2):
                came = server.models()[name]["value"] != "loaded"
                begin = time.monotonic()
                status, _, text = server.completion(name, 1)
                if status != 200:
                    sys.exit(f"{name}: {status} {text[:200]!r}")
                (cold if came else warm)[name].append(time.monotonic() - begin)
    return cold, warm


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("url", nargs="?", default="http://127.0.0.1:8080")
    args.add_argument("--pid", type=int)
    args.add_argument("--clients", type=int, default=16)
    args.add_argument("--minutes", type=float, default=10)
    args.add_argument("--rounds", type=int, default=5, help="switches of one client alone, before the crowd")
    args.add_argument("--files", nargs="*", default=[])
    args.add_argument("--key")
    args = args.parse_args()
    server = Server(args.url, args.key)
    names, faults = list(server.models()), []
    for name in names:
        server.ask("POST", "/models/unload", {"model": name})
    cap = server.metric("tokenmill_models_cap_bytes")
    empty = own_bytes(args.pid) if args.pid else 0
    expect, sizes = {}, {}
    for name in names:
        status, _, text = server.completion(name, 8)
        if status != 200:
            sys.exit(f"{name}: {status} {text[:200]!r}")
        expect[name] = json.loads(text)["choices"]
        sizes[name] = server.models()[name].get("bytes", 0)
    print(f"{len(names)} models of {sum(sizes.values()) >> 20} MiB, {cap >> 20} MiB for them together")
    cold, warm = switches(server, names, args.rounds)
    over, most, counts = threading.Event(), [0, 0], collections.Counter()
    lock = threading.Lock()

    def client(seed):
        draw = random.Random(seed)
        while not over.is_set():
            name = draw.choice(names)
            status, headers, text = server.completion(name, 8)
            headers = {key.lower(): value for key, value in headers.items()}
            said = json.loads(text)
            with lock:
                if status == 200 and said["choices"] == expect[name]:
                    counts["answers"] += 1
                elif status == 503 and "retry-after" in headers and said["error"]["code"]:
                    counts[said["error"]["code"]] += 1
                else:
                    faults.append(f"{name}: {status} {text[:200]!r}")
            if status == 503:
                over.wait(float(headers.get("retry-after", 1)))

    def watch():
        while not over.is_set():
            most[0] = max(most[0], server.metric("tokenmill_models_bytes"))
            most[1] = max(most[1], own_bytes(args.pid) - empty if args.pid else 0)
            over.wait(0.05)

    loads = server.metric("tokenmill_model_loads_total")
    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(args.clients)]
    threads.append(threading.Thread(target=watch))
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    time.sleep(args.minutes * 60)
    over.set()
    for thread in threads:
        thread.join()
    seconds, loads = time.monotonic() - begin, server.metric("tokenmill_model_loads_total") - loads
    print(f"{args.clients} clients, {seconds:.0f} s: {dict(counts)}, {loads} loads, {counts['answers'] / seconds:.1f} answers a second")
    print(f"at most {most[0] >> 20} MiB by the ledger" + (f", {most[1] >> 20} MiB of the process's own" if args.pid else ""))
    print(f"{'model':<28} {'MiB':>6} {'there':>8} {'switch':>8} {'p95':>8} {'GB/s':>6}" + (f" {'read':>8} {'part':>5}" if args.files else "") + "   ms")
    for at, name in enumerate(names):
        if not cold[name]:
            print(f"{name[:28]:<28} {sizes[name] >> 20:>6} never had to come")
            continue
        there = statistics.median(warm[name])
        took = [max(0.0, s - there) for s in cold[name]]
        median = statistics.median(took)
        line = f"{name[:28]:<28} {sizes[name] >> 20:>6} {there * 1e3:>8.1f} {median * 1e3:>8.1f} {percentile(took, 0.95) * 1e3:>8.1f} {sizes[name] / max(median, 1e-6) / 1e9:>6.2f}"
        if at < len(args.files):
            read = read_seconds(args.files[at])
            line += f" {read * 1e3:>8.1f} {read / max(median, 1e-6):>5.0%}"
        print(line)
    if most[0] > cap:
        faults.append(f"{most[0]} bytes of models by the ledger, {cap} are allowed")
    if most[1] > cap:
        faults.append(f"{most[1]} bytes of the process's own, {cap} are allowed")
    for fault in faults[:20]:
        print("FAULT", fault)
    sys.exit(1 if faults else 0)


main()
