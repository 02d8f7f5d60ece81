"""Drives a running server with the official `anthropic` client.

    python anthropic_client.py http://127.0.0.1:8080 [--api-key KEY]

Needs the package `anthropic` only. Works with any model that has a chat template; ends with status 0 and
"ok" when every check held.
"""

import argparse
import time

import anthropic

# (The client itself no longer names it.)
GREEDY = {"temperature": 0}
QUESTION = [{"role": "user", "content": "Count: one, two,"}]
TOOL = {
    "name": "lookup",
    "description": "Looks a word up",
    "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}},
}


def input_tokens(usage):
    return usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens


def whole_and_stream(client, model):
    ask = dict(
        model=model, max_tokens=24, extra_body=GREEDY, system="You are terse.", messages=QUESTION
    )
    whole = client.messages.create(**ask)
    assert whole.type == "message" and whole.role == "assistant" and whole.model == model
    assert whole.stop_reason in ("end_turn", "max_tokens"), whole.stop_reason
    assert [block.type for block in whole.content] == ["text"]
    assert 0 < whole.usage.output_tokens <= 24
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == whole.content[0].text == last.content[0].text, (text, whole)
    assert last.stop_reason == whole.stop_reason
    assert input_tokens(last.usage) == input_tokens(whole.usage)
    counted = client.messages.count_tokens(
        model=model, system=ask["system"], messages=QUESTION
    )
    assert counted.input_tokens == input_tokens(whole.usage)


def stops(client, model):
    ask = dict(model=model, max_tokens=1, extra_body=GREEDY, messages=QUESTION)
    assert client.messages.create(**ask).stop_reason == "max_tokens"
    said = client.messages.create(**{**ask, "max_tokens": 24}).content[0].text
    stop = said[len(said) // 2]
    cut = client.messages.create(**{**ask, "max_tokens": 24}, stop_sequences=[stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop), cut
    assert "".join(block.text for block in cut.content) == said[: said.index(stop)]


def history(client, model):
    """A turn with a tool, whose call the answer made before; then one that is begun."""
    called = [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "toolu_1", "name": "lookup", "input": {"word": "river"}},
    ]
    found = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "flowing water"}
    talk = QUESTION + [
        {"role": "assistant", "content": called},
        {"role": "user", "content": [found, {"type": "text", "text": "So?"}]},
    ]
    ask = dict(model=model, max_tokens=8, extra_body=GREEDY)
    assert client.messages.create(**ask, messages=talk, tools=[TOOL]).usage.output_tokens > 0
    begun = QUESTION + [{"role": "assistant", "content": "three,"}]
    answer = client.messages.create(**ask, messages=begun)
    assert answer.usage.output_tokens > 0
    beta = client.beta.messages.create(**ask, messages=begun, betas=["prompt-caching-2024-07-31"])
    assert beta.content[0].text == answer.content[0].text


def kept(client, model):
    """What is marked is there for the next turn."""
    words = "The river flows to the sea. " * 20
    block = {"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}
    ask = dict(model=model, max_tokens=2, messages=[{"role": "user", "content": [block]}])
    first, second = client.messages.create(**ask).usage, client.messages.create(**ask).usage
    assert first.cache_creation_input_tokens + first.cache_read_input_tokens > 64, first
    assert second.cache_read_input_tokens > 64, second


def errors(client, model):
    ask = dict(model=model, max_tokens=4, messages=QUESTION)
    for change, error, words in [
        ({"model": "nobody"}, anthropic.NotFoundError, "nobody"),
        ({"messages": []}, anthropic.BadRequestError, "messages"),
        (
            {"messages": [{"role": "user", "content": "word " * 200_000}]},
            anthropic.BadRequestError,
            "prompt is too long",
        ),
    ]:
        try:
            client.messages.create(**{**ask, **change})
        except error as raised:
            assert raised.body["type"] == "error" and words in str(raised), raised
        else:
            raise AssertionError(f"{change} was taken")


def batches(client, model):
    try:
        client.messages.batches.list()
    except anthropic.NotFoundError as error:
        assert "--state" in str(error), error
        return print("batches: the server keeps none")
    params = dict(model=model, max_tokens=4, messages=QUESTION)
    requests = [{"custom_id": f"l{n}", "params": params} for n in range(3)]
    requests.append({"custom_id": "bad", "params": {**params, "max_tokens": 0}})
    batch = client.messages.batches.create(requests=requests)
    while batch.processing_status != "ended":
        time.sleep(0.05)
        batch = client.messages.batches.retrieve(batch.id)
    counts = batch.request_counts
    assert (counts.succeeded, counts.errored, counts.processing) == (3, 1, 0), batch
    results = {line.custom_id: line.result for line in client.messages.batches.results(batch.id)}
    assert list(results) == ["l0", "l1", "l2", "bad"]
    assert results["l0"].message.usage.output_tokens > 0
    assert results["bad"].error.error.type == "invalid_request_error"
    slow = {**params, "max_tokens": 1000}
    slow = [{"custom_id": f"l{n}", "params": slow} for n in range(200)]
    begun = client.messages.batches.create(requests=slow)
    assert client.messages.batches.cancel(begun.id).processing_status in ("canceling", "ended")
    listed = list(client.messages.batches.list(limit=1))
    assert {batch.id, begun.id} <= {one.id for one in listed}
    while client.messages.batches.retrieve(begun.id).processing_status != "ended":
        time.sleep(0.05)
    kinds = {line.result.type for line in client.messages.batches.results(begun.id)}
    assert "canceled" in kinds, kinds
    for one in (batch, begun):
        assert client.messages.batches.delete(one.id).type == "message_batch_deleted"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("base")
    parser.add_argument("--api-key", default="none")
    args = parser.parse_args()
    client = anthropic.Anthropic(base_url=args.base, api_key=args.api_key, max_retries=0)
    models = list(client.models.list())
    model = models[0].id
    assert models[0].type == "model" and models[0].created_at.year >= 1970
    assert client.models.retrieve(model).id == model
    for check in [whole_and_stream, stops, history, kept, errors, batches]:
        check(client, model)
        print(check.__name__)
    print("ok")


main()
