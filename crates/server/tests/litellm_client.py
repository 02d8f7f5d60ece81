"""Drives a running server through litellm (1.110.2), by the names of OpenAI's chat completions, completions and Responses and
of Anthropic's Messages.

    python litellm_client.py http://127.0.0.1:8080

Works with any model that has a chat template; ends with status 0 and "ok" when every check held."""

import json, os, sys, urllib.request

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

litellm.suppress_debug_info = True

URL = sys.argv[1].rstrip("/")
with urllib.request.urlopen(f"{URL}/v1/models") as found:
    MODEL = json.load(found)["data"][0]["id"]
KINDS = {
    "openai": {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1"},
    "hosted_vllm": {"model": f"hosted_vllm/{MODEL}", "api_base": f"{URL}/v1"},
    "anthropic": {"model": f"anthropic/{MODEL}", "api_base": URL},
}
MESSAGES = [{"role": "user", "content": "Count: one, two,"}]
WORD = {"type": "object", "properties": {"word": {"enum": ["river", "sea"]}}, "required": ["word"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "lookup", "description": "Looks a word up", "parameters": WORD}}


def text(ask):
    ask = dict(ask, messages=MESSAGES, max_tokens=24, temperature=0)
    whole = litellm.completion(**ask)
    assert whole.choices[0].finish_reason in ("stop", "length")
    chunks = list(litellm.completion(**ask, stream=True, stream_options={"include_usage": True}))
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == whole.choices[0].message.content, (said, whole)
    built = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert built.usage.prompt_tokens == whole.usage.prompt_tokens, (built.usage, whole.usage)


def tools(ask):
    ask = dict(ask, messages=MESSAGES, max_tokens=256, tools=[TOOL], tool_choice="required")
    chunks = list(litellm.completion(**ask, stream=True))
    for answer in (litellm.completion(**ask), litellm.stream_chunk_builder(chunks, messages=MESSAGES)):
        assert answer.choices[0].finish_reason == "tool_calls", answer
        message = answer.choices[0].message
        for call in message.tool_calls:
            assert call.function.name == "lookup"
            assert json.loads(call.function.arguments)["word"] in ("river", "sea"), call
    results = [{"role": "tool", "tool_call_id": call.id, "content": "water"} for call in message.tool_calls]
    after = dict(ask, messages=[*MESSAGES, message.model_dump(), *results], tool_choice="auto", max_tokens=8)
    assert litellm.completion(**after).usage.completion_tokens > 0


def held(ask):
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": WORD, "strict": True}}
    said = litellm.completion(**ask, messages=MESSAGES, max_tokens=64, response_format=form)
    assert json.loads(said.choices[0].message.content)["word"] in ("river", "sea"), said


def errors(ask):
    for change, error in [
        ({"messages": [{"role": "user", "content": "word " * 40_000}]}, litellm.ContextWindowExceededError),
        ({"model": ask["model"] + "-not"}, litellm.NotFoundError),
    ]:
        try:
            litellm.completion(**{**ask, "messages": MESSAGES, "max_tokens": 8, "max_retries": 0, **change})
        except error:
            continue
        raise AssertionError(f"{change.keys()} was taken")


def others():
    """What only OpenAI has."""
    ask = dict(api_base=f"{URL}/v1", api_key="none")
    said = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt="a b c", max_tokens=4, **ask)
    assert said.usage.completion_tokens <= 4
    said = litellm.responses(model=f"openai/{MODEL}", input="Count: one, two,", max_output_tokens=16, **ask)
    assert said.status in ("completed", "incomplete") and said.usage.output_tokens <= 16
    stream = litellm.responses(model=f"openai/{MODEL}", input="Count:", max_output_tokens=16, stream=True, **ask)
    kinds = [event.type for event in stream]
    assert kinds[-1] in ("response.completed", "response.incomplete"), kinds


for kind, ask in KINDS.items():
    for check in (text, tools, held, errors):
        check(dict(ask, api_key="none"))
        print(f"{kind}, {check.__name__}: ok", flush=True)
others()
print("others: ok\nok")
