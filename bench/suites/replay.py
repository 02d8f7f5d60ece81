#!/usr/bin/env python3
"""What coding agents sent, recorded, sent again: every request is answered 200 by a well-formed stream, and what a prompt
has in common with an earlier one of its sequence comes from the cache.

    bench/suites/replay.py FOLDER QWEN.gguf [--binary tokenmill] [--only NAME,...] [--alone] > replay.txt

Starts the server; with --alone each sequence has a key of its own, and keys share no prompts (long: every sequence computes its
prompts anew). FOLDER has a file for each sequence: a list of {method, path, headers, body}, where {"$same": N} stands for the value at
the same place in request N. The model's name is replaced, and answers are cut at 16 tokens. Left out: messages of a
WebSocket. Ollama's answers do not tell what came from the cache. `tokenmill render --ids` says what prompts have in common; the server shares whole
blocks of 32 tokens, and computes a prompt's last token always."""

import argparse, http.client, json, pathlib, shutil, signal, subprocess, sys, time, urllib.request

BLOCK = 32
ROUTES = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages", "/api/chat": "ollama"}
LIMITS = {"chat": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}
# Of a connection, of a body that is written anew, and keys.
LEFT_OUT = {"content-length", "host", "connection", "accept-encoding", "transfer-encoding", "authorization", "x-api-key"}
PORT, MODEL = 8097, "local-model"


def load(path):
    """The requests, with what they repeat put back."""
    requests = json.loads(path.read_text())
    same = lambda value: isinstance(value, dict) and set(value) == {"$same"}  # noqa: E731
    for request in requests:
        body = request["body"]
        for name in body if isinstance(body, dict) else ():
            if same(body[name]):
                body[name] = requests[body[name]["$same"]]["body"][name]
            elif isinstance(body[name], list):
                items = enumerate(body[name])
                body[name] = [requests[v["$same"]]["body"][name][i] if same(v) else v for i, v in items]
    return requests


def cut(body, dialect, most):
    body = {**body, "model": MODEL}
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        body.pop(name, None)
    if dialect == "ollama":
        return {**body, "options": {**body.get("options", {}), "num_predict": most}}
    body[LIMITS[dialect]] = most
    if isinstance(body.get("thinking"), dict) and "budget_tokens" in body["thinking"]:
        body["thinking"] = {**body["thinking"], "budget_tokens": most}
    if dialect == "chat" and body.get("stream"):
        body["stream_options"] = {"include_usage": True}
    return body


def ask(key, request, body):
    server = http.client.HTTPConnection("127.0.0.1", PORT, timeout=3600)
    headers = {name: value for name, value in request["headers"].items() if name.lower() not in LEFT_OUT}
    headers["Authorization"] = f"Bearer {key}"
    if any(name.lower() == "upgrade" for name in headers):
        headers["Connection"] = "Upgrade"
    sent = None if body is None else json.dumps(body)
    server.request(request["method"], request["path"], sent, headers)
    answer = server.getresponse()
    return answer.status, answer.read().decode()


def events(text):
    """The events of a stream as (name, data); comments keep it alive."""
    assert text.endswith("\n\n"), text[-80:]
    for event in text.removesuffix("\n\n").split("\n\n"):
        lines = [line for line in event.split("\n") if not line.startswith(":")]
        if not lines:
            continue
        name = lines.pop(0).removeprefix("event: ") if lines[0].startswith("event: ") else None
        assert len(lines) == 1 and lines[0].startswith("data: "), event
        data = lines[0].removeprefix("data: ")
        yield name, data if data == "[DONE]" else json.loads(data)


def chat(stream):
    """Prompt's tokens, cached ones, and why it ended."""
    stream = [data for name, data in stream if name is None]
    assert stream.pop() == "[DONE]"
    usage = stream.pop()
    assert usage["choices"] == [] and len({chunk["id"] for chunk in stream}) == 1
    finish, calls = None, []
    for at, chunk in enumerate(stream):
        (choice,) = chunk["choices"]
        assert chunk["object"] == "chat.completion.chunk" and choice["index"] == 0 and finish is None
        assert (at == 0) == ("role" in choice["delta"]), chunk
        finish = choice["finish_reason"]
        for call in choice["delta"].get("tool_calls", []):
            if call["index"] == len(calls):
                assert call["id"] and call["type"] == "function" and call["function"]["name"], call
                calls.append(call)
            assert call["index"] == len(calls) - 1 and "arguments" in call["function"], call
    assert finish in ("stop", "length", "tool_calls"), finish
    usage = usage["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], finish


def responses(stream):
    stream = list(stream)
    assert all(name == data["type"] for name, data in stream)
    stream = [data for _, data in stream]
    assert [data["sequence_number"] for data in stream] == list(range(len(stream)))
    kinds = [data["type"] for data in stream]
    assert kinds[:2] == ["response.created", "response.in_progress"], kinds[:2]
    assert kinds[-1] in ("response.completed", "response.incomplete"), kinds[-1]
    items, item, text = [], None, ""
    for data in stream[2:-1]:
        kind = data["type"]
        assert data["output_index"] == len(items), data
        if kind == "response.output_item.added":
            assert item is None and data["item"]["id"], data
            item, text = data["item"], ""
        elif kind == "response.output_item.done":
            assert data["item"]["id"] == item["id"], data
            items.append(data["item"])
            item = None
        else:
            assert data["item_id"] == item["id"], data
            text = "" if kind == "response.content_part.added" else text
            text += data["delta"] if kind.endswith(".delta") else ""
            if kind.endswith(("text.done", "arguments.done", "input.done")):
                assert text == next(data[name] for name in ("text", "arguments", "input") if name in data), data
    last = stream[-1]["response"]
    assert item is None and last["output"] == items and last["id"] == stream[0]["response"]["id"]
    usage = last["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], last["status"]


def messages(stream):
    stream = [data for name, data in stream if name == data["type"] != "ping"]
    assert stream.pop(0)["type"] == "message_start" and stream.pop()["type"] == "message_stop"
    end, at, block = stream.pop(), 0, None
    for data in stream:
        assert data["index"] == at, data
        if data["type"] == "content_block_start":
            assert block is None, data
            block = data["content_block"]["type"]
        elif data["type"] == "content_block_delta":
            kinds = {"text": ["text"], "thinking": ["thinking", "signature"], "tool_use": ["input_json"]}
            assert data["delta"]["type"].removesuffix("_delta") in kinds[block], data
        else:
            assert data["type"] == "content_block_stop" and block, data
            at, block = at + 1, None
    assert end["type"] == "message_delta" and block is None
    assert end["delta"]["stop_reason"] in ("end_turn", "max_tokens", "tool_use"), end
    usage = end["usage"]
    cached = usage["cache_read_input_tokens"]
    prompt = usage["input_tokens"] + cached + usage["cache_creation_input_tokens"]
    return prompt, cached, end["delta"]["stop_reason"]


def ollama(text):
    """The same of lines; nobody says what was cached."""
    lines = [json.loads(line) for line in text.splitlines()]
    last = lines.pop()
    assert last["done"] is True and all(line["done"] is False for line in lines) and len({line["model"] for line in lines}) <= 1
    for line in lines:
        assert line["message"]["role"] == "assistant", line
        for call in line["message"].get("tool_calls", []):
            assert call["function"]["name"] and isinstance(call["function"]["arguments"], dict), call
    durations = [last[name] for name in ("load_duration", "prompt_eval_duration", "eval_duration")]
    assert sum(durations) == last["total_duration"] and last["done_reason"] in ("stop", "length"), last
    return last["prompt_eval_count"], None, last["done_reason"]


READERS = {"chat": chat, "responses": responses, "messages": messages}


def whole(dialect, answer):
    """The same of an answer that was no stream."""
    usage = answer["usage"]
    if dialect == "chat":
        finish = answer["choices"][0]["finish_reason"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], finish
    if dialect == "responses":
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], answer["status"]
    cached = usage["cache_read_input_tokens"]
    prompt = usage["input_tokens"] + cached + usage["cache_creation_input_tokens"]
    return prompt, cached, answer["stop_reason"]


def rendered(args, dialect, body):
    """The ids of the tokens of a prompt."""
    command = [args.binary, "render", args.model, "--dialect", dialect, "--ids"]
    found = subprocess.run(command, input=json.dumps(body).encode(), capture_output=True)
    assert found.returncode == 0, found.stderr.decode()
    return json.loads(found.stdout)


def common(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def one(args, key, request, before):
    """Sends one request; what it said of its prompt, where it has one."""
    method, path = request["method"], request["path"].partition("?")[0]
    dialect = ROUTES.get(path) if method == "POST" else None
    body = request["body"] if method == "POST" else None
    if dialect:
        body = cut(body, dialect, args.tokens)
    elif body and path == "/api/show":
        body = {**body, "name": MODEL}
    upgrade = any(name.lower() == "upgrade" for name in request["headers"])
    status, text = ask(key, request, body)
    assert status == (426 if upgrade else 200), f"{status}: {text[:400]}"
    if not dialect:
        return None
    stream = body.get("stream")
    if dialect == "ollama":
        prompt, cached, _ = ollama(text)
    else:
        prompt, cached, _ = READERS[dialect](events(text)) if stream else whole(dialect, json.loads(text))
    ids = rendered(args, dialect, body)
    assert len(ids) == prompt, f"the prompt has {len(ids)} tokens, usage says {prompt}"
    shared = max((common(ids, other) for other in before), default=0)
    floor = min(shared, len(ids) - 1) // BLOCK * BLOCK
    assert cached is None or cached >= floor, f"{cached} tokens came from the cache, {shared} of {prompt} stood in an earlier prompt"
    before.append(ids)
    return prompt, cached or 0, floor if cached is not None else 0


def sequence(args, path):
    """A line of the table."""
    found, before, others, faults = [], [], 0, []
    for number, request in enumerate(load(path)):
        if request["method"] == "WS":
            continue
        try:
            told = one(args, path.stem if args.alone else "all", request, before)
        except (AssertionError, KeyError, ValueError, StopIteration, OSError) as error:
            where = f"{path.stem}, request {number}, {request['method']} {request['path']}"
            faults.append(f"{where}: {error!r}")
            continue
        others += told is None
        found += [told] if told else []
    if not found and not faults and not others:
        return True
    longest = max((prompt for prompt, _, _ in found), default=0)
    sums = [sum(column) for column in zip(*found)] or [0, 0, 0]
    verdict = "FAIL" if faults else "pass"
    cells = [path.stem, len(found), others, longest, sums[0], sums[2], sums[1], verdict]
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    for fault in faults:
        print("  " + fault[:1000], file=sys.stderr, flush=True)
    return not faults


def serve(args, keys):
    command = [args.binary, "serve", args.model, "--port", str(PORT), "--ctx", "32768", "--slots", "4", "--quiet"]
    command += ["--served-model-name", MODEL, "--api-key", ",".join(keys)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/readyz", timeout=2)
            return server
        except OSError:
            if server.poll() is not None:
                sys.exit(f"the server ended with {server.returncode}")
            time.sleep(0.2)
    sys.exit("the server is not ready after 2 minutes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("model", help="a model file, such as .ci/qwen_coder.py makes")
    parser.add_argument("--binary", default=shutil.which("tokenmill") or "target/release/tokenmill")
    parser.add_argument("--tokens", type=int, default=16, help="most tokens of an answer")
    parser.add_argument("--alone", action="store_true", help="no sequence finds what another one computed")
    parser.add_argument("--only", default="", help="beginnings of names, comma between")
    args = parser.parse_args()
    wanted = tuple(filter(None, args.only.split(",")))
    paths = [path for path in sorted(args.folder.glob("*.json")) if not wanted or path.stem.startswith(wanted)]
    server = serve(args, [path.stem for path in paths] if args.alone else ["all"])
    try:
        print("| sequence | answers | others | longest prompt | tokens of prompts | in common, whole blocks | cached | |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
        failed = [path.stem for path in paths if not sequence(args, path)]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    print(f"{len(paths) - len(failed)} of {len(paths)} sequences pass" + "".join(f"; {name}" for name in failed))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
