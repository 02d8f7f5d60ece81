"""Drives a running server with the official `openai` client.

    python openai_client.py http://127.0.0.1:8080 [--api-key KEY] [--model NAME]

Needs the package `openai` only. Works with any model that has a chat template; ends with status 0 and
"ok" when every check held.
"""

import argparse
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
    cancel(client, model, base, args.api_key)
    print("cancel: ok", flush=True)
    check_free(base, args.api_key)
    print("ok")


if __name__ == "__main__":
    main()
