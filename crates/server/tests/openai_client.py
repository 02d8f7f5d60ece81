"""Drives a running server with the official `openai` client.

    python openai_client.py http://127.0.0.1:8080 [--api-key KEY] [--model NAME]

Needs the package `openai` only. Works with any model that has a chat template; ends with status 0 and
"ok" when every check held.
"""

import argparse
import json
import time
import urllib.request

import openai


def metric_values(base, key, name):
    """The lines of /metrics whose name begins so: {line without its value: value}."""
    request = urllib.request.Request(f"{base}/metrics")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=10) as response:
        page = response.read().decode()
    lines = (line.rsplit(" ", 1) for line in page.splitlines() if line.startswith(name))
    return {label: float(value) for label, value in lines}


def check_free(base, key):
    """After a moment no request is open and every block is free or cached."""
    deadline = time.monotonic() + 10
    while True:
        open_requests = metric_values(base, key, "tokenmill_requests_open{")
        blocks = metric_values(base, key, "tokenmill_kv_blocks{")
        used = {label: n for label, n in blocks.items() if 'state="used"' in label}
        assert open_requests and used, "the metrics are there"
        if not any(open_requests.values()) and not any(used.values()):
            return
        assert time.monotonic() < deadline, f"not given back: {open_requests} {used}"
        time.sleep(0.05)


def chat(client, model):
    messages = [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": [{"type": "text", "text": "Count: one, two,"}]},
    ]
    ask = dict(model=model, messages=messages, max_tokens=24, seed=7, temperature=0.8)
    whole = client.chat.completions.create(**ask)
    choice = whole.choices[0]
    assert choice.message.role == "assistant" and choice.message.content is not None
    assert choice.finish_reason in ("stop", "length")
    usage = whole.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 24 and usage.prompt_tokens > 0

    chunks = list(
        client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == choice.message.content, (text, choice.message.content)
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == choice.finish_reason and not any(reasons[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens


def sent_back(client, model):
    """An answer goes into the next request as the client dumps it."""
    question = {"role": "user", "content": "Say hello."}
    ask = dict(model=model, max_tokens=8, seed=1)
    first = client.chat.completions.create(**ask, messages=[question]).choices[0].message
    messages = [question, first.model_dump(), {"role": "assistant", "content": None}, question]
    again = client.chat.completions.create(**ask, messages=messages)
    assert not (again.model_extra or {}).get("warnings"), again.model_extra
    odd = client.chat.completions.create(
        **ask, messages=[question], extra_body={"unheard_of": 1, "unheard_of_null": None}
    )
    assert len(odd.model_extra["warnings"]) == 1 and "unheard_of" in odd.model_extra["warnings"][0]


def completions(client, model):
    ask = dict(model=model, prompt="The quick brown fox", max_tokens=16, seed=3, temperature=0.7)
    whole = client.completions.create(**ask)
    text = "".join(
        c.choices[0].text for c in client.completions.create(**ask, stream=True) if c.choices
    )
    assert text == whole.choices[0].text, (text, whole.choices[0].text)
    both = client.completions.create(**{**ask, "prompt": ["The quick brown fox", "One two"]})
    assert [c.index for c in both.choices] == [0, 1]
    assert both.choices[0].text == whole.choices[0].text, "the same alone and beside another"


def stop_texts(client, model):
    ask = dict(model=model, prompt="a b c d e f", max_tokens=32, seed=1, temperature=1.0)
    free = client.completions.create(**ask).choices[0].text
    visible = free.strip()
    assert visible, "the model says something"
    mark = visible[len(visible) // 2]
    for stop in (mark, ["\0nowhere", mark]):
        stopped = client.completions.create(**ask, stop=stop).choices[0]
        assert stopped.text == free[: free.index(mark)], (stopped.text, free)
        assert stopped.finish_reason == "stop"


def parallel_answers(client, model):
    messages = [{"role": "user", "content": "Name a colour."}]
    ask = dict(model=model, messages=messages, max_tokens=12, n=2, seed=5, temperature=1.0)
    whole = client.chat.completions.create(**ask)
    assert [c.index for c in whole.choices] == [0, 1]
    texts = ["", ""]
    for chunk in client.chat.completions.create(**ask, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [c.message.content for c in whole.choices]


def logprobs(client, model):
    messages = [{"role": "user", "content": "Say hello."}]
    answer = client.chat.completions.create(
        model=model, messages=messages, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    )
    tokens = answer.choices[0].logprobs.content
    assert tokens and all(len(t.top_logprobs) == 3 for t in tokens)
    for token in tokens:
        assert token.logprob <= 0
        assert abs(token.top_logprobs[0].logprob - token.logprob) < 1e-6, "greedy takes the best"
    answer = client.completions.create(
        model=model, prompt="Hello", max_tokens=6, temperature=0, logprobs=2
    )
    told = answer.choices[0].logprobs
    lengths = {len(told.tokens), len(told.token_logprobs), len(told.top_logprobs), len(told.text_offset)}
    assert lengths == {len(told.tokens)} and told.text_offset[0] == 0


def responses(client, model):
    ask = dict(model=model, input="Count: one, two,", max_output_tokens=24, temperature=0)
    whole = client.responses.create(**ask, instructions="You are terse.")
    assert whole.status in ("completed", "incomplete") and whole.output_text
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens

    with client.responses.stream(**ask, instructions="You are terse.") as stream:
        events = list(stream)
        last = stream.get_final_response() if events[-1].type == "response.completed" else None
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(numbers), numbers
    assert events[0].type == "response.created" and events[1].type == "response.in_progress"
    assert events[-1].type == f"response.{whole.status}"
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == whole.output_text, (text, whole.output_text)
    assert last is None or last.output_text == text

    counted = client.responses.input_tokens.count(
        model=model, input=ask["input"], instructions="You are terse."
    )
    assert counted.input_tokens == whole.usage.input_tokens

    again = [
        {"role": "user", "content": ask["input"]},
        *[item.model_dump(exclude_none=True) for item in whole.output],
        {"type": "function_call", "call_id": "a", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "noon"},
        {"role": "user", "content": "And then?"},
    ]
    tools = [{"type": "function", "name": "now", "parameters": {"type": "object"}, "strict": False}]
    second = client.responses.create(
        model=model, input=again, tools=tools, max_output_tokens=8, store=False
    )
    assert second.output

    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    form = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
    held = client.responses.create(model=model, input="Is it so?", text=form, temperature=0)
    assert held.output_text in ('{"ok":true}', '{"ok":false}'), held.output_text

    if keeps(client):
        return
    for call in (client.responses.retrieve, client.responses.delete):
        try:
            call(whole.id)
            raise AssertionError("there is no such response")
        except openai.NotFoundError as error:
            assert error.code == "response_not_found", error
    try:
        client.responses.create(**ask, previous_response_id=whole.id)
        raise AssertionError("nothing is stored")
    except openai.BadRequestError as error:
        assert error.param == "previous_response_id", error


def keeps(client):
    """Whether the server was started with --state."""
    try:
        client.batches.list()
    except openai.NotFoundError as error:
        assert error.code == "no_state", error
        return False
    return True


def stored_responses(client, model):
    ask = dict(model=model, max_output_tokens=8, temperature=0)
    first = client.responses.create(**ask, input="My name is Ann.", instructions="You are terse.")
    assert client.responses.retrieve(first.id).to_dict() == first.to_dict()
    second = client.responses.create(**ask, input="Who am I?", previous_response_id=first.id)
    assert second.previous_response_id == first.id and second.instructions is None
    said = [
        {"role": "user", "content": "My name is Ann."},
        *[item.model_dump(exclude_none=True) for item in first.output],
        {"role": "user", "content": "Who am I?"},
    ]
    whole = client.responses.create(**ask, input=said, store=False)
    assert second.output_text == whole.output_text
    items = list(client.responses.input_items.list(second.id, order="asc", limit=1))
    assert len(items) == 2 + len(first.output) and items[0].content[0].text == "My name is Ann."
    assert [item.id for item in client.responses.input_items.list(second.id)] == [i.id for i in items][::-1]

    waited = client.responses.create(**ask, input="Who am I?", previous_response_id=first.id, background=True)
    while waited.status in ("queued", "in_progress"):
        time.sleep(0.05)
        waited = client.responses.retrieve(waited.id)
    assert waited.output_text == second.output_text
    long = client.responses.create(
        model=model, input="Tell a story.", max_output_tokens=1500, background=True, extra_body={"ignore_eos": True}
    )
    assert client.responses.cancel(long.id).status == "cancelled"
    assert client.responses.retrieve(long.id).status == "cancelled"

    client.responses.delete(first.id)
    try:
        client.responses.retrieve(first.id)
        raise AssertionError("it was deleted")
    except openai.NotFoundError as error:
        assert error.code == "response_not_found", error


def conversations(client, model):
    talk = client.conversations.create(
        metadata={"topic": "names"}, items=[{"role": "user", "content": "My name is Ann."}]
    )
    assert client.conversations.update(talk.id, metadata={"topic": "people"}).metadata == {"topic": "people"}
    assert client.conversations.retrieve(talk.id).metadata == {"topic": "people"}
    answer = client.responses.create(
        model=model, input="Who am I?", conversation=talk.id, max_output_tokens=8, temperature=0
    )
    assert answer.conversation.id == talk.id
    items = list(client.conversations.items.list(talk.id, order="asc"))
    assert [item.type for item in items[:2]] == ["message", "message"]
    assert items[-1].content[0].text == answer.output_text, items
    added = client.conversations.items.create(talk.id, items=[{"role": "user", "content": "Bye."}])
    item = client.conversations.items.retrieve(added.data[0].id, conversation_id=talk.id)
    assert item.content[0].text == "Bye."
    assert client.conversations.items.delete(item.id, conversation_id=talk.id).id == talk.id
    assert client.conversations.delete(talk.id).deleted
    try:
        client.conversations.retrieve(talk.id)
        raise AssertionError("it was deleted")
    except openai.NotFoundError:
        pass


def batches(client, model):
    def line(name, **more):
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
        url = "/v1/chat/completions"
        return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": {**body, **more}}) + "\n"

    text = "".join(line(f"l{n}", seed=n) for n in range(5)) + line("bad", temperature=9)
    file = client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
    assert file.bytes == len(text) and client.files.retrieve(file.id).to_dict() == file.to_dict()
    assert client.files.content(file.id).read() == text.encode()
    assert file.id in [other.id for other in client.files.list(purpose="batch")]

    def ended(batch):
        while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
            time.sleep(0.05)
            batch = client.batches.retrieve(batch.id)
        return batch

    new = dict(endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"})
    batch = ended(client.batches.create(input_file_id=file.id, **new))
    counts = batch.request_counts
    assert batch.status == "completed" and batch.metadata == {"a": "b"}, batch
    assert (counts.total, counts.completed, counts.failed) == (6, 5, 1), batch
    lines = [json.loads(text) for text in client.files.content(batch.output_file_id).text.splitlines()]
    same = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=4, temperature=0
    )
    for line_ in lines:
        answer = line_["response"]["body"]["choices"][0]["message"]["content"]
        assert answer == same.choices[0].message.content, line_
    errors = [json.loads(text) for text in client.files.content(batch.error_file_id).text.splitlines()]
    assert [error["custom_id"] for error in errors] == ["bad"]
    assert errors[0]["response"]["status_code"] == 400

    broken = client.files.create(file=("in.jsonl", b'{"custom_id":'), purpose="batch")
    failed = ended(client.batches.create(input_file_id=broken.id, **new))
    assert failed.status == "failed" and failed.errors.data[0].line == 1, failed
    slow = "".join(line(f"l{n}", max_tokens=500, ignore_eos=True) for n in range(200))
    slow = client.files.create(file=("in.jsonl", slow.encode()), purpose="batch")
    begun = client.batches.create(input_file_id=slow.id, **new)
    cancelled = ended(client.batches.cancel(begun.id))
    assert cancelled.status == "cancelled", cancelled
    assert {b.id for b in client.batches.list(limit=2)} == {batch.id, failed.id, begun.id} | {
        b.id for b in client.batches.list()
    }
    for one in (file, broken, slow):
        assert client.files.delete(one.id).deleted


def errors(client, model):
    cases = [
        (openai.NotFoundError, dict(model="no-such-model", prompt="a")),
        (openai.BadRequestError, dict(model=model, prompt="a", temperature=9)),
        (openai.BadRequestError, dict(model=model, prompt="a", extra_body={"no_repeat_ngram_size": 5})),
        (openai.BadRequestError, dict(model=model, prompt="word " * 200_000)),
    ]
    for kind, ask in cases:
        try:
            client.completions.create(**ask)
        except kind as error:
            assert error.body["message"], error
        else:
            raise AssertionError(f"{ask.keys()} was taken")


def cancel(client, model, base, key):
    # Without end tokens it would go on until the context is full.
    ask = dict(model=model, prompt="Once upon a time", stream=True, extra_body={"ignore_eos": True})
    for count in (0, 1, 5):
        stream = client.completions.create(**ask, max_tokens=100_000)
        for _, _chunk in zip(range(count), stream):
            pass
        stream.close()
        check_free(base, key)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", help="such as http://127.0.0.1:8080")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--model", help="default: the first one listed")
    args = parser.parse_args()
    base = args.base.rstrip("/")
    client = openai.OpenAI(
        base_url=f"{base}/v1", api_key=args.api_key or "none", max_retries=0, timeout=120
    )
    listed = [m.id for m in client.models.list()]
    assert listed, "a model is served"
    model = args.model or listed[0]
    assert client.models.retrieve(model).id == model
    for check in (chat, sent_back, completions, stop_texts, parallel_answers, logprobs, responses, errors):
        check(client, model)
        print(f"{check.__name__}: ok", flush=True)
    for check in (stored_responses, conversations, batches) if keeps(client) else ():
        check(client, model)
        print(f"{check.__name__}: ok", flush=True)
    cancel(client, model, base, args.api_key)
    print("cancel: ok", flush=True)
    check_free(base, args.api_key)
    print("ok")


if __name__ == "__main__":
    main()
