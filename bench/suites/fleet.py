#!/usr/bin/env python3
"""Three workers behind a router on this machine: does what repeats go where it is cached, and what becomes of answers
when a worker is killed and when one is drained.

    python3 -m venv smg && smg/bin/pip install smg==1.13.0
    sh integrations/dynamo/setup.sh dynamo && dynamo/bin/pip install gguf
    python3 bench/suites/fleet.py smg --tokenmill BIN --model FILE.gguf --router smg/bin/smg
    dynamo/bin/python bench/suites/fleet.py dynamo --tokenmill BIN --model FILE.gguf
    dynamo/bin/python bench/suites/fleet.py cost --tokenmill BIN --model FILE.gguf

60 requests, one after another, over 6 prefixes of some 400 tokens in an order that is drawn: of the 54 that repeat a
prefix, how many find it in the cache of the worker that gets them; beside it the same by turns (round robin). Then four
clients ask at once while a worker is killed (SIGKILL), started again, and another one drained. Every answer is compared
with the one that a worker gives that is asked directly.

`cost`: two servers, one of which tells events to a subscriber and is asked for its metrics every second, in ten pairs of
32 streams each. Standard library only, but for Dynamo's card and `cost` (pyzmq)."""

import argparse, atexit, http.client, json, os, random, re, shutil, signal, socket, statistics, subprocess, sys, tempfile, threading, time
import urllib.error, urllib.request

WORDS = ("river stone lamp garden window paper engine bridge market winter shadow copper signal harbour meadow "
         "letter candle mirror valley thunder basket feather ladder island kitchen compass").split()
HERE = os.path.dirname(os.path.abspath(__file__))


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def prefixes(count, words):
    draw = random.Random(11)
    return [f"Notes, part {n}. " + " ".join(draw.choice(WORDS) for _ in range(words)) + "." for n in range(count)]


def get(url, timeout=5):
    return urllib.request.urlopen(url, timeout=timeout).read().decode()


def ask(url, prompt, tokens=8, timeout=60):
    """Status, text."""
    body = json.dumps({"model": "fleet", "prompt": prompt, "max_tokens": tokens, "temperature": 0}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return reply.status, json.load(reply)["choices"][0]["text"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()[:300]
    except (OSError, http.client.HTTPException, ValueError) as error:
        return 0, f"{type(error).__name__}: {error}"


class Worker:
    """tokenmill by itself, which a router asks over HTTP."""

    def __init__(self, options, port=None, places=8, threads=1):
        self.options, self.places, self.threads, self.port = options, places, threads, port or free_port()
        self.url, self.process = f"http://127.0.0.1:{self.port}", None
        self.start()

    def command(self):
        return [self.options.tokenmill, "serve", self.options.model, "--served-model-name", "fleet", "--port",
                str(self.port), "--ctx", "4k", "--slots", str(self.places), "--threads", str(self.threads), "--quiet"]

    def start(self):
        log = open(os.path.join(self.options.logs, f"worker-{self.port}.log"), "ab")
        self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, env=self.options.env)
        atexit.register(self.stop)
        until(lambda: get(f"{self.url}/readyz"), "a worker")

    def counts(self):
        """Requests that it began, prompt tokens that it found."""
        try:
            page = get(f"{self.url}/metrics")
        except OSError:
            return 0, 0
        number = lambda name: float(re.search(rf"^tokenmill_{name}{{.*}} (\S+)$", page, re.M).group(1))
        return number("requests_accepted_total"), number("cached_tokens_total")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def drain(self):
        self.process.terminate()  # (as POST /drain)
        return self.process.wait(timeout=90)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()


class DynamoWorker(Worker):
    """The same with Dynamo's worker before it, which starts it on a port of its own choice, and its cache on disk."""

    def command(self):
        return [sys.executable, os.path.join(HERE, "../../integrations/dynamo/worker.py"), self.options.model, "--card",
                self.options.card, "--name", "fleet", "--tokenmill", self.options.tokenmill, "--",
                "--ctx", "4k", "--slots", "8", "--threads", "1", "--quiet",
                "--kv-dir", os.path.join(self.options.logs, f"kv-{self.port}")]

    def start(self):
        path = os.path.join(self.options.logs, f"dynamo-{self.port}-{time.time_ns()}.log")
        with open(path, "wb") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, env=self.options.env)

        atexit.register(self.stop)

        def found():
            said = re.search(r"at (http://\S+), process (\d+)", open(path, errors="replace").read())
            if self.process.poll() is not None:
                sys.exit(f"the worker ended: {path}")
            if said is None:
                raise OSError("not yet")
            self.url, self.engine = said.group(1), int(said.group(2))

        until(found, "a worker", 120)

    def kill(self):
        os.kill(self.engine, signal.SIGKILL)  # the engine itself; its worker takes leave
        self.process.wait(timeout=60)


def until(check, what, seconds=60):
    end = time.time() + seconds
    while True:
        try:
            return check()
        except (OSError, http.client.HTTPException) as error:
            if time.time() > end:
                sys.exit(f"{what} does not come: {error}")
            time.sleep(0.1)


class Router:
    def __init__(self, options, workers, by):
        self.port, self.log = free_port(), os.path.join(options.logs, f"router-{by}.log")
        self.url = f"http://127.0.0.1:{self.port}"
        log = open(self.log, "wb")
        self.process = subprocess.Popen(self.command(options, workers, by), stdout=log, stderr=log, env=options.env)
        atexit.register(self.stop)
        prompt = "Is anybody there?"

        def answers():
            status, text = ask(self.url, prompt, 1, 10)
            if status != 200:
                raise OSError(f"{status} {text}")

        until(answers, "the router", 120)

    def stop(self):
        self.process.kill()  # (it has nothing to end)
        self.process.wait()


class Smg(Router):
    NEAR, TURNS = "cache_aware", "round_robin"

    def command(self, options, workers, by):
        return [options.router, "launch", "--host", "127.0.0.1", "--port", str(self.port), "--policy", by,
                "--prometheus-port", str(free_port()), "--health-check-interval-secs", "2",
                "--health-failure-threshold", "2", "--health-success-threshold", "1",
                "--worker-urls", *(worker.url for worker in workers)]


class Dynamo(Router):
    NEAR, TURNS = "kv", "round-robin"

    def command(self, options, workers, by):
        return [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(self.port),
                "--router-mode", by, "--migration-limit", "3"]


def repeats(router, workers, truth, count=6, times=10):
    """Of requests that repeat a prefix, how many find it; wrong answers."""
    draw, begins = random.Random(5), prefixes(count, 260)
    order = [n for n in range(count) for _ in range(times)]
    draw.shuffle(order)
    seen, found, all_repeats, wrong, served = set(), 0, 0, 0, [0] * len(workers)
    before = [worker.counts() for worker in workers]
    for i, n in enumerate(order):
        prompt = f"{begins[n]}\nQuestion {i % 10}: what of it?"
        status, text = ask(router.url, prompt)
        time.sleep(0.05)  # (events of the cache are on their way)
        after = [worker.counts() for worker in workers]
        by = max(range(len(workers)), key=lambda w: after[w][0] - before[w][0])
        served[by] += 1
        hit = after[by][1] - before[by][1] >= 128
        before = after
        wrong += status != 200 or text != truth(prompt)
        if n in seen:
            all_repeats += 1
            found += hit
        seen.add(n)
    return found, all_repeats, wrong, served


class Load:
    """Four clients that ask until they are stopped; what came of it."""

    def __init__(self, router, truth, count=6):
        self.over, self.lock, self.right, self.errors, self.wrong = threading.Event(), threading.Lock(), 0, [], []
        begins = prefixes(count, 60)
        prompts = [f"{begins[n]}\nQuestion {q}: and then?" for n in range(count) for q in range(4)]
        self.truth = {prompt: truth(prompt, 24) for prompt in prompts}
        self.threads = [threading.Thread(target=self.ask, args=(router, prompts[i::4]), daemon=True)
                        for i in range(4)]
        for thread in self.threads:
            thread.start()

    def ask(self, router, prompts):
        n = 0
        while not self.over.is_set():
            prompt = prompts[n % len(prompts)]
            n += 1
            status, text = ask(router.url, prompt, 24)
            with self.lock:
                if status != 200:
                    self.errors.append(f"{status} {text}")
                elif text == self.truth[prompt]:
                    self.right += 1
                else:
                    self.wrong.append((prompt, text))

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join()
        return self.right, self.errors, self.wrong


def answers(worker):
    """What a worker says that is asked directly."""
    known = {}

    def truth(prompt, tokens=8):
        if (prompt, tokens) not in known:
            status, text = ask(worker.url, prompt, tokens)
            if status != 200:
                sys.exit(f"{status} {text}")
            known[prompt, tokens] = text
        return known[prompt, tokens]

    return truth


def card(model, folder):
    """The Hugging Face folder of a GGUF file with a byte-level vocabulary, as far as a frontend reads it."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    fields = GGUFReader(model).fields
    field = lambda name: fields[name].contents()
    if field("tokenizer.ggml.model") != "gpt2" or field("tokenizer.ggml.pre") != "smollm":
        sys.exit("the card is made for SmolLM2's vocabulary; for others take the model's own folder")
    tokens = field("tokenizer.ggml.tokens")
    vocab = {token: id for id, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ", 1)) for merge in field("tokenizer.ggml.merges")]
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, field("tokenizer.ggml.token_type")) if kind == 3]
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    os.makedirs(folder, exist_ok=True)
    made.save(os.path.join(folder, "tokenizer.json"))
    eos = field("tokenizer.ggml.eos_token_id")
    write = lambda name, value: json.dump(value, open(os.path.join(folder, name), "w"))
    write("tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokens[eos],
        "chat_template": field("tokenizer.chat_template"), "model_max_length": 8192})
    write("config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "eos_token_id": eos, "bos_token_id": 1,
        "vocab_size": len(tokens), "max_position_embeddings": 8192, "hidden_size": 576, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3})
    write("generation_config.json", {"eos_token_id": eos})


class Heard:
    """Who hears a worker's events and reads its metrics, as a router does: batches, pages."""

    def __init__(self, worker, address):
        import zmq
        self.socket, self.worker, self.over = zmq.Context.instance().socket(zmq.SUB), worker, threading.Event()
        self.socket.connect(address)
        self.socket.subscribe(b"")
        self.socket.RCVTIMEO = 200
        self.again, self.batches, self.bytes, self.pages = zmq.Again, 0, 0, 0
        for each in (self.hear, self.scrape):
            threading.Thread(target=each, daemon=True).start()

    def hear(self):
        while not self.over.is_set():
            try:
                self.bytes += len(self.socket.recv_multipart()[2])
                self.batches += 1
            except self.again:
                pass

    def scrape(self):
        while not self.over.wait(1):
            get(f"{self.worker.url}/metrics")
            self.pages += 1


class Telling(Worker):
    """A worker that tells events."""

    def command(self):
        self.events = f"tcp://127.0.0.1:{free_port()}"
        return super().command() + ["--kv-events", self.events]


def cost(options):
    """What events and metrics cost: tokens a second of 32 streams with and without, in ten pairs."""
    plain, telling = (kind(options, places=32, threads=os.cpu_count()) for kind in (Worker, Telling))
    heard = Heard(telling, telling.events)

    def rate(worker, seed):
        """Tokens a second, and seconds of CPU that the server took."""
        command = [options.tokenmill, "bench", "serve", worker.url, "-n", "32", "-c", "32", "-p", "40", "-o", "40",
                   "--seed", str(seed), "--warmup", "0", "--json"]
        before = cpu_s(worker)
        said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        if said["finished"] != 32:
            sys.exit(f"answers are missing: {said['errors']}")
        return said["out_tok_s"], cpu_s(worker) - before

    for worker in (plain, telling):
        rate(worker, 1000)
    pairs = []
    for n in range(10):
        order = (plain, telling) if n % 2 == 0 else (telling, plain)
        found = {worker: rate(worker, n) for worker in order}
        pairs.append((found[plain], found[telling]))
    heard.over.set()
    good = heard.batches > 100 and heard.pages > 10
    for which, what, sign in ((0, "tokens a second", -1), (1, "seconds of CPU", 1)):
        ratios = [told[which] / bare[which] for bare, told in pairs]
        bare = [bare[which] for bare, _ in pairs]
        mean, spread = statistics.mean(ratios), statistics.stdev(ratios)
        good &= sign * (mean - 1) < spread
        print(f"32 streams, {what}: {statistics.mean(bare):.2f} without events and metrics, {min(bare):.2f} to {max(bare):.2f} "
              f"in ten runs; with / without, by pairs: {' '.join(f'{ratio:.3f}' for ratio in ratios)}; "
              f"mean {mean:.4f} +- {spread / len(ratios) ** 0.5:.4f}")
    print(f"heard: {heard.batches} batches of events, {heard.bytes} bytes, {heard.pages} pages of metrics")
    print("good" if good else "not good: it costs more than the noise of a pair")
    sys.exit(not good)


def cpu_s(worker):
    fields = open(f"/proc/{worker.process.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=["smg", "dynamo", "cost"])
    parser.add_argument("--tokenmill", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--router", help="SMG's program")
    parser.add_argument("--short", action="store_true", help="two workers, 12 requests, one worker drained")
    options = parser.parse_args()
    options.logs = tempfile.mkdtemp(prefix="fleet-")
    options.env, options.card = dict(os.environ), os.path.join(options.logs, "card")
    if options.which == "cost":
        cost(options)
    router_of, worker_of = (Smg, Worker) if options.which == "smg" else (Dynamo, DynamoWorker)
    plain = Worker(options)
    truth, good = answers(plain), True
    if options.which == "dynamo":
        card(options.model, options.card)
    for by in (router_of.NEAR,) if options.short else (router_of.TURNS, router_of.NEAR):
        # Each begins with empty caches.
        options.env.update(
            DYN_DISCOVERY_BACKEND="file", DYN_FILE_KV=tempfile.mkdtemp(dir=options.logs), DYN_REQUEST_PLANE="tcp",
            DYN_EVENT_PLANE="zmq", DYN_TCP_RPC_HOST="127.0.0.1", DYN_TCP_RESPONSE_STREAM_HOST="127.0.0.1",
            DYN_EVENT_PLANE_HOST="127.0.0.1", DYN_LOG="warn", OTEL_SDK_DISABLED="true")
        workers = [worker_of(options) for _ in range(2 if options.short else 3)]
        router = router_of(options, workers, by)
        time.sleep(2 if options.short else 3)
        try:
            size = (4, 3) if options.short else (6, 10)
            found, all_repeats, wrong, served = repeats(router, workers, truth, *size)
            print(f"{options.which} {by}: {found} of {all_repeats} repeats find their prefix, {wrong} wrong answers, "
                  f"requests by worker {served}", flush=True)
            good &= wrong == 0 and (by != router_of.NEAR or found >= 0.9 * all_repeats)
            if by == router_of.NEAR:
                good &= (drained if options.short else troubles)(options, router, workers, truth)
                if options.which == "dynamo":
                    good &= revived(options, router, workers, truth)
        finally:
            router.stop()
            for worker in workers:
                worker.stop()
    plain.stop()
    if good:
        shutil.rmtree(options.logs)
    print("good" if good else f"not good; logs in {options.logs}")
    sys.exit(not good)


def troubles(options, router, workers, truth):
    load = Load(router, truth)
    time.sleep(5)
    workers[0].kill()
    time.sleep(8)
    right, errors, wrong = load.end()
    kinds = sorted({error[:110] for error in errors})
    print(f"{options.which} kill -9 under load: {right} right, {len(errors)} told errors, {len(wrong)} wrong", flush=True)
    for kind in kinds[:5]:
        print(f"    {kind}")
    good = not wrong and right > 0
    workers[0].start()
    load, before = Load(router, truth), workers[0].counts()[0]
    deadline = time.time() + 60
    while workers[0].counts()[0] == before and time.time() < deadline:
        time.sleep(0.5)
    used = workers[0].counts()[0] - before
    right, errors, wrong = load.end()
    print(f"{options.which} started again: it is {'used' if used else 'NOT used'}; {right} right, {len(errors)} told "
          f"errors, {len(wrong)} wrong", flush=True)
    return drained(options, router, workers, truth) and good and not wrong and used > 0


def revived(options, router, workers, truth):
    """A worker that is replaced in peace gets what it has on disk, and finds it there."""
    for worker in workers:
        if worker.process.poll() is not None:
            worker.start()
    time.sleep(3)
    prompts = [f"{begin}\nAnd so on." for begin in prefixes(12, 261)[6:]]
    before = [worker.counts()[0] for worker in workers]
    places = []
    for prompt in prompts:
        ask(router.url, prompt)
        after = [worker.counts()[0] for worker in workers]
        places.append(max(range(len(workers)), key=lambda w: after[w] - before[w]))
        before = after
    time.sleep(2)  # (until all is on disk)
    one = max(set(places), key=places.count)
    own = [prompt for prompt, place in zip(prompts, places) if place == one]
    workers[one].drain()
    workers[one].start()
    time.sleep(4)
    good = []
    for prompt in own:
        good.append(ask(router.url, prompt) == (200, truth(prompt)))
        time.sleep(0.3)  # (until the router knows that it has ended: work in progress counts more than what is on disk)
    accepted, found = workers[one].counts()
    print(f"{options.which} replaced with its cache on disk: {accepted:.0f} of {len(own)} requests go there again, and "
          f"find {found:.0f} tokens; {good.count(False)} wrong", flush=True)
    return all(good) and accepted == len(own) and found >= 256 * len(own)


def drained(options, router, workers, truth):
    load = Load(router, truth, 2 if options.short else 6)
    time.sleep(2 if options.short else 4)
    code = max(workers, key=lambda worker: worker.counts()[0]).drain()  # (whom most is asked of)
    time.sleep(3 if options.short else 6)
    right, errors, wrong = load.end()
    print(f"{options.which} drained under load (exit {code}): {right} right, {len(errors)} lost, {len(wrong)} wrong",
          flush=True)
    for error in errors[:5]:
        print(f"    {error[:160]}")
    return not errors and not wrong and right > 0


main()
