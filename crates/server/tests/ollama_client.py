"""Drives a running server with Ollama's own client.

    python ollama_client.py http://127.0.0.1:8080 [--model NAME]

Needs the package `ollama` (0.6.3) only. Works with any model that has a chat template; ends with status 0 and "ok" when every
check held. What changes models is asked of a server that has more than it was started with: `tokenmill serve` without names.
"""

import argparse

import ollama
from pydantic import BaseModel


class Colour(BaseModel):
    colour: str
    warm: bool


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
      a: one
      b: the other
    """
    return a + b


def talk(text):
    return [{"role": "user", "content": text}]


def texts(client, model):
    few = {"num_predict": 12, "temperature": 0}
    whole = client.chat(model=model, messages=talk("Count: one, two,"), options=few)
    assert whole.done and whole.done_reason in ("stop", "length") and whole.message.role == "assistant"
    assert whole.eval_count and whole.total_duration >= whole.eval_duration > 0
    parts = list(client.chat(model=model, messages=talk("Count: one, two,"), options=few, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert parts[-1].done and not any(part.done for part in parts[:-1]) and parts[-1].prompt_eval_count == whole.prompt_eval_count
    told = client.generate(model=model, prompt="Say hello.", system="You are terse.", options=few)
    assert told.response and told.done
    raw = list(client.generate(model=model, prompt="one two three", raw=True, options=few, stream=True, logprobs=True, top_logprobs=2))
    assert sum(len(part.logprobs or []) for part in raw) == raw[-1].eval_count
    held = client.chat(
        model=model, messages=talk("Describe a colour as JSON."), format=Colour.model_json_schema(),
        options={"temperature": 0, "num_predict": 200},
    )
    if held.done_reason == "stop":
        Colour.model_validate_json(held.message.content)
    thought = client.chat(model=model, messages=talk("Hi"), think=False, options=few)
    assert thought.done and not thought.message.thinking


def tools(client, model):
    few = {"num_predict": 60, "temperature": 0}
    answer = client.chat(model=model, messages=talk("What is 2 + 3? Use the tool."), tools=[add], options=few)
    for call in answer.message.tool_calls or []:
        assert call.function.name == "add" and isinstance(call.function.arguments, dict)
    call = {"function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
    history = talk("What is 2 + 3?") + [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "add", "content": "5"},
    ]
    assert client.chat(model=model, messages=history, tools=[add], options=few).done


def models(client, model):
    listed = [entry.model for entry in client.list().models]
    assert model in listed, listed
    shown = client.show(model)
    assert "completion" in shown.capabilities and shown.modelinfo and shown.details is not None
    assert client.generate(model=model).done_reason == "load"
    assert [entry for entry in client.ps().models if entry.context_length > 0 and entry.expires_at]
    for wrong in (lambda: client.chat(model="no-such-model", messages=talk("Hi")), lambda: client.show("no-such-model")):
        try:
            wrong()
            raise AssertionError("a model that is not there answered")
        except ollama.ResponseError as error:
            assert error.status_code == 404 and "no-such-model" in error.error, error


def made(client, model):
    created = list(client.create("client-test", from_=model, system="You are a pirate.", parameters={"temperature": 0}, stream=True))
    assert created[-1].status == "success"
    try:
        names = [entry.model for entry in client.list().models]
        assert "client-test:latest" in names and client.show("client-test").parameters.split() == ["temperature", "0"]
        few = {"num_predict": 4}
        long = client.chat(model="client-test", messages=talk("Hi"), options=few).prompt_eval_count
        assert client.copy("client-test", "client-copy").status == "success"
        assert client.chat(model="client-copy", messages=talk("Hi"), options=few).prompt_eval_count == long
        assert client.delete("client-copy").status == "success"
    finally:
        client.delete("client-test")


parser = argparse.ArgumentParser()
parser.add_argument("base")
parser.add_argument("--model")
args = parser.parse_args()
client = ollama.Client(host=args.base, timeout=300)
name = args.model or client.list().models[0].model
for part in (models, texts, tools, made):
    part(client, name)
print("ok")
