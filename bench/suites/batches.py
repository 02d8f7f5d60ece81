#!/usr/bin/env python3
"""Kills a server again and again while it works at a batch: every line must be answered once, and with the same text.

    python3 bench/suites/batches.py TOKENMILL [MODEL] [--kills 50] [--lines 2000] [--seed 1]

Starts `serve MODEL --state` over a new folder, uploads a file of lines and makes a batch of it; beside it come requests
for stored responses, one after another, each behind the last that was told. The server is killed (SIGKILL) at random
moments, the time between two of them such that all fall into the batch, and started again over what is left. In the
end: each custom_id stands once in the output, its answer is that of the same request asked outside, the counts add up,
the database is whole (PRAGMA integrity_check), no file is left that nobody has, and every response whose answer a
client saw is there. Standard library only."""

import argparse, http.client, json, os, random, signal, socket, sqlite3, subprocess, sys, tempfile, threading, time

SMALL = os.path.join(os.path.dirname(__file__), "../../tests/cases/template-that-looks-for-a-control-token")


class Server:
    def __init__(self, binary, model, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.command = [binary, "serve", model, "--port", str(self.port), "--state", folder, "--quiet", "--no-seal-key", "--slots", "16"]

    def start(self):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.command, stderr=self.log)
        for _ in range(600):
            try:
                if self.ask("GET", "/readyz")[0] == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        self.log.seek(0)
        sys.exit(f"the server does not start:\n{self.log.read().decode()}")

    def ask(self, method, path, body=None, kind="application/json"):
        peer = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            body = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            peer.request(method, path, body, {"content-type": kind})
            answer = peer.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:
            raise OSError(error) from error
        finally:
            peer.close()

    def json(self, *ask, **kind):
        status, body = self.ask(*ask, **kind)
        assert status == 200, (ask[:2], status, body[:500])
        return json.loads(body)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def requests(lines):
    for n in range(lines):
        body = {"prompt": f"a{n % 7} b", "max_tokens": 1 + n % 5, "seed": n, "temperature": 1, "ignore_eos": True}
        if n % 100 == 99:
            body["temperature"] = 9  # refused
        yield f"line {n}", body


def upload(server, text):
    head = '--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    form = head.encode() + text.encode() + b"\r\n--b--\r\n"
    return server.json("POST", "/v1/files", form, kind="multipart/form-data; boundary=b")["id"]


def answers(server, over, seen):
    """Responses, each behind the last one that a client saw."""
    last = None
    while not over.is_set():
        try:
            ask = {"input": "a", "max_output_tokens": 2}
            if last and len(seen) % 20:
                ask["previous_response_id"] = last
            told = server.json("POST", "/v1/responses", ask)
            last = told["id"]
            seen.append(told)
        except OSError:
            time.sleep(0.05)  # it was killed
        time.sleep(0.01)


def progress(server, batch):
    told = server.json("GET", f"/v1/batches/{batch}")
    counts = told["request_counts"]
    return told, counts["completed"] + counts["failed"]


def killed(args, server, batch, rng):
    """Kills the server that often while the batch goes on; how many lines were answered each time."""
    at = []
    for kill in range(args.kills):
        _, last = progress(server, batch)
        assert not at or last >= at[-1], (last, at[-1], "answered lines were lost")
        # On average an equal part of what is left but for the last hundred, which the last server answers.
        target = last + rng.randrange(max(1, 2 * (args.lines - 100 - last) // (args.kills - kill)))
        deadline = time.monotonic() + 120
        while (told := progress(server, batch))[1] < target:
            assert time.monotonic() < deadline, (told, "it does not go on")
        time.sleep(rng.random() * 0.02)
        told, done = progress(server, batch)
        if told["status"] in ("finalizing", "completed"):
            break  # a fast machine was done before all kills came
        at.append(done)
        server.kill()
        server.start()
    return at


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("model", nargs="?", default=SMALL)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng, begun = random.Random(args.seed), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args.binary, args.model, folder)
        server.start()
        asks = dict(requests(args.lines))
        line = lambda name, body: json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body})
        file = upload(server, "".join(line(*ask) + "\n" for ask in asks.items()))
        new = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = server.json("POST", "/v1/batches", new)["id"]
        over, seen = threading.Event(), []
        beside = threading.Thread(target=answers, args=(server, over, seen), daemon=True)
        beside.start()
        at = killed(args, server, batch, rng)
        over.set()
        beside.join()
        assert len(at) >= min(3, args.kills), (at, "it ended before it was killed")
        while (told := progress(server, batch)[0])["status"] != "completed":
            assert told["status"] in ("validating", "in_progress", "finalizing"), told
            time.sleep(0.1)
        content = lambda id: server.ask("GET", f"/v1/files/{id}/content")[1].decode().splitlines()
        good = [json.loads(text) for text in content(told["output_file_id"])]
        bad = [json.loads(text) for text in content(told["error_file_id"])]
        names = [line["custom_id"] for line in good + bad]
        assert len(names) == len(set(names)) and set(names) == set(asks), "a line is lost or there twice"
        refused = [name for name, body in asks.items() if body["temperature"] == 9]
        assert [line["custom_id"] for line in bad] == refused
        assert told["request_counts"] == {"total": args.lines, "completed": len(good), "failed": len(bad)}, told
        checked = rng.sample(good, min(200, len(good)))
        for line in checked:
            same = server.json("POST", "/v1/completions", asks[line["custom_id"]])
            assert line["response"]["body"]["choices"] == same["choices"], line
        for response in seen:
            assert server.json("GET", f"/v1/responses/{response['id']}") == response
        server.kill()
        database = sqlite3.connect(os.path.join(folder, "state.db"))
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        known = {id for (id,) in database.execute("SELECT id FROM files")}
        database.close()  # or the server would say that another has it
        server.start()
        assert set(os.listdir(os.path.join(folder, "files"))) == known, "a file that nobody has"
        server.kill()
    chain = sum(response["previous_response_id"] is not None for response in seen)
    print(
        f"{args.lines} lines, killed {len(at)} times, at {at[0]} to {at[-1]} answered lines: each answered once "
        f"({len(good)} answers, {len(bad)} refused), {len(checked)} of them compared with the same request from outside; "
        f"{len(seen)} stored responses beside it, {chain} of them behind another, all there; {time.monotonic() - begun:.0f} s"
    )


if __name__ == "__main__":
    main()
