"""Drives a running server through instructor (1.17.0) in its modes TOOLS, JSON and JSON_SCHEMA, and over Anthropic's client.

    python instructor_client.py http://127.0.0.1:8080

Works with any model that has a chat template; ends with status 0 and "ok" when every check held."""

import json, sys, urllib.request
from typing import Literal

import anthropic, instructor, openai
from instructor.core import InstructorRetryException
from pydantic import BaseModel, Field

URL = sys.argv[1].rstrip("/")
with urllib.request.urlopen(f"{URL}/v1/models") as found:
    MODEL = json.load(found)["data"][0]["id"]


class User(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)
    kind: Literal["guest", "member"]


MESSAGES = [{"role": "user", "content": "Extract the user: Jason is 25 years old and a member."}]
ASK = dict(model=MODEL, messages=MESSAGES, response_model=User, max_tokens=256, temperature=0)


def openais():
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA):
        patched = instructor.from_openai(client, mode=mode)
        # A small model may need the other tries where nothing holds it (JSON).
        found = patched.chat.completions.create(**ASK, max_retries=3)
        assert isinstance(found, User), found
        print(f"{mode.name}: ok, {found!r}", flush=True)
        parts = list(patched.chat.completions.create_partial(**ASK))
        assert parts and isinstance(parts[-1], BaseModel), parts
        print(f"{mode.name}, in parts: ok", flush=True)


def messages():
    client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
    patched = instructor.from_anthropic(client, mode=instructor.Mode.ANTHROPIC_TOOLS)
    ask = {name: value for name, value in ASK.items() if name != "temperature"}  # its client has none
    found = patched.messages.create(**ask, max_retries=3)
    assert isinstance(found, User), found
    print(f"ANTHROPIC_TOOLS: ok, {found!r}", flush=True)


openais()
messages()
print("ok")
