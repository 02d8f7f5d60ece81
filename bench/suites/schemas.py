#!/usr/bin/env python3
"""Answers of a real model that are held to schemas: every one that ends is valid, those cut say so.

    tokenmill serve QWEN.gguf --ctx 16384 --slots 16
    python3 bench/suites/schemas.py [URL] [--answers 5] [--schemas 40] [--speed]

Forty schemas, so many answers each (seeds 1, 2, ...; temperature 1, at most 200 tokens), eight at a time. `--speed`:
tokens a second of 16 streams, free and held to a schema of mostly free strings, in turn three times, and how soon an
answer of mostly known tokens ends. Needs the package jsonschema, an outside validator."""

import argparse, json, statistics, sys, time, urllib.request
from concurrent.futures import ThreadPoolExecutor

import jsonschema

STR, INT, NUM, BOOL = ({"type": t} for t in ("string", "integer", "number", "boolean"))


def obj(required=None, **members):
    required = list(members) if required is None else required
    return {"type": "object", "properties": members, "required": required, "additionalProperties": False}


def arr(items, **more):
    return {"type": "array", "items": items, **more}


def enum(*values):
    return {"enum": list(values)}


SCHEMAS = [
    ("a person", obj(name=STR, age={"type": "integer", "minimum": 0, "maximum": 120})),
    ("a book", obj(title=STR, author=STR, year={"type": "integer", "minimum": 1450, "maximum": 2030}, tags=arr(STR, maxItems=4))),
    ("a colour", obj(name=enum("red", "green", "blue", "grün", "緑"), rgb=arr({"type": "integer", "minimum": 0, "maximum": 255}, minItems=3, maxItems=3))),
    ("the weather", obj(city=STR, celsius={"type": "number", "minimum": -90, "maximum": 60}, rain=BOOL)),
    ("a list of five primes", arr(INT, minItems=5, maxItems=5)),
    ("a point", obj(x=NUM, y=NUM)),
    ("a triangle of points", arr(obj(x=INT, y=INT), minItems=3, maxItems=3)),
    ("an order", obj(id={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}, items=arr(obj(sku=STR, count={"type": "integer", "minimum": 1}), minItems=1, maxItems=3), paid=BOOL)),
    ("a date", obj(date={"type": "string", "format": "date"}, weekday=enum("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"))),
    ("a time stamp", obj(at={"type": "string", "format": "date-time"}, what=STR)),
    ("an e-mail contact", obj(mail={"type": "string", "format": "email"}, name=STR)),
    ("a movie review", obj(stars={"type": "integer", "minimum": 1, "maximum": 5}, text={"type": "string", "maxLength": 120}, spoiler=BOOL)),
    ("yes or no", enum("yes", "no")),
    ("one of the numbers one to three", enum(1, 2, 3)),
    ("a nullable nickname", obj(name=STR, nickname={"type": ["string", "null"]})),
    ("a shape", {"anyOf": [obj(kind={"const": "circle"}, r=NUM), obj(kind={"const": "square"}, side=NUM)]}),
    ("a tree of names, two levels", {"$ref": "#/$defs/node", "$defs": {"node": obj(["name"], name={"type": "string", "maxLength": 20}, children=arr({"$ref": "#/$defs/node"}, maxItems=2))}}),
    ("a linked list of numbers", {"$ref": "#/$defs/cell", "$defs": {"cell": {"anyOf": [{"type": "null"}, obj(value=INT, next={"$ref": "#/$defs/cell"})]}}}),
    ("a recipe", obj(dish=STR, minutes={"type": "integer", "minimum": 1, "maximum": 600}, steps=arr({"type": "string", "maxLength": 60}, minItems=2, maxItems=5))),
    ("an HTTP status", obj(code=enum(200, 201, 301, 400, 404, 500), reason=STR)),
    ("a version", {"type": "string", "pattern": "^[0-9]+\\.[0-9]+\\.[0-9]+$"}),
    ("a hexadecimal colour", {"type": "string", "pattern": "^#[0-9a-f]{6}$"}),
    ("coordinates of a city", obj(city=STR, lat={"type": "number", "minimum": -90, "maximum": 90}, lon={"type": "number", "minimum": -180, "maximum": 180})),
    ("a matrix two by two", arr(arr(INT, minItems=2, maxItems=2), minItems=2, maxItems=2)),
    ("a quiz question", obj(question=STR, options=arr(STR, minItems=4, maxItems=4), answer={"type": "integer", "minimum": 0, "maximum": 3})),
    ("a shopping list", arr(obj(what=STR, amount={"type": "number", "exclusiveMinimum": 0}, unit=enum("g", "kg", "l", "piece")), minItems=1, maxItems=4)),
    ("a dictionary of scores", {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 4}),
    ("a sentence and its language", obj(text={"type": "string", "minLength": 5, "maxLength": 80}, language=enum("en", "de", "fr", "zh", "ar"))),
    ("a command to run", obj(cmd=enum("ls", "cat", "grep", "find"), args=arr({"type": "string", "maxLength": 30}, maxItems=3))),
    ("a patch of a file", obj(path={"type": "string", "pattern": "^[a-z/]+\\.rs$"}, line=INT, text=STR)),
    ("a flag set", obj(["debug"], debug=BOOL, verbose=BOOL, level=enum("low", "high"))),
    ("a unique list of letters", arr(enum("a", "b", "c"), minItems=1, maxItems=3)),
    ("a pair of number and word", {"type": "array", "prefixItems": [INT, STR], "items": False, "minItems": 2}),
    ("an even price in cents", obj(cents={"type": "integer", "multipleOf": 2, "minimum": 0, "maximum": 10000})),
    ("a football result", obj(home=STR, away=STR, goals=arr({"type": "integer", "minimum": 0, "maximum": 20}, minItems=2, maxItems=2))),
    ("a thing that is true", {"const": {"ok": True, "items": []}}),
    ("a user with an address", obj(name=STR, address=obj(street=STR, city=STR, zip={"type": "string", "pattern": "^[0-9]{5}$"}))),
    ("a search query", obj(["query"], query={"type": "string", "minLength": 1, "maxLength": 60}, page={"type": "integer", "minimum": 1}, sort=enum("new", "old"))),
    ("a test report", obj(passed=INT, failed=INT, failures=arr(obj(name=STR, message={"type": "string", "maxLength": 60}), maxItems=2))),
    ("a deep box", obj(a=obj(b=obj(c=obj(d=arr(BOOL, maxItems=2)))))),
]
FREE = obj(title=STR, summary=STR, body=STR)
KNOWN = {"const": {f"member number {i} of the fixed answer": "this text is always the same" for i in range(8)}}


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def ask(url, model, question, tokens, seed, schema=None, **more):
    body = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": tokens, "seed": seed, "temperature": 1, **more}
    if schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return post(url + "/v1/chat/completions", body)


def validity(url, model, schemas, answers):
    jobs = [(what, schema, seed) for what, schema in SCHEMAS[:schemas] for seed in range(1, answers + 1)]
    ended = cut = 0
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda job: ask(url, model, f"Give me {job[0]} as JSON.", 200, job[2], job[1]), jobs)
        for (what, schema, seed), answer in zip(jobs, found):
            choice = answer["choices"][0]
            if choice["finish_reason"] == "length":
                assert answer["usage"]["completion_tokens"] == 200, answer
                cut += 1
                continue
            assert choice["finish_reason"] == "stop", answer
            try:
                jsonschema.Draft202012Validator(schema).validate(json.loads(choice["message"]["content"]))
            except (ValueError, jsonschema.ValidationError) as error:
                sys.exit(f"{what}, seed {seed}: {choice['message']['content']!r}: {error}")
            ended += 1
    print(f"{len(jobs)} answers over {schemas} schemas: {ended} ended, all valid; {cut} cut at 200 tokens, and say so")
    assert ended > cut, "most were cut"


def streams(url, model, schema, turn):
    start = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        ask_one = lambda i: ask(url, model, f"Write a long article about the number {i}, as JSON.", 128, 100 * turn + i, schema, ignore_eos=schema is None)
        found = list(pool.map(ask_one, range(16)))
    return sum(answer["usage"]["completion_tokens"] for answer in found) / (time.monotonic() - start)


def speed(url, model):
    streams(url, model, FREE, 9)
    rates = {"free": [], "held": []}
    for turn in range(3):
        for name, schema in (("free", None), ("held", FREE)):
            rates[name].append(streams(url, model, schema, turn))
    free, held = (statistics.median(rates[name]) for name in ("free", "held"))
    print(f"16 streams, tokens/s: free {free:.0f} {[round(r) for r in rates['free']]}, held to free strings {held:.0f} {[round(r) for r in rates['held']]}: {held / free:.2f}")
    known, free = [], []
    for seed in range(3):
        start = time.monotonic()
        tokens = ask(url, model, "Give me the fixed answer.", 400, seed, KNOWN)["usage"]["completion_tokens"]
        middle = time.monotonic()
        ask(url, model, "Give me the fixed answer.", tokens, seed, ignore_eos=True)
        known.append(middle - start), free.append(time.monotonic() - middle)
    print(f"{tokens} known tokens {statistics.median(known):.2f} s, as many free ones {statistics.median(free):.2f} s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8080")
    parser.add_argument("--answers", type=int, default=5)
    parser.add_argument("--schemas", type=int, default=len(SCHEMAS))
    parser.add_argument("--speed", action="store_true")
    args = parser.parse_args()
    with urllib.request.urlopen(args.url + "/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    speed(args.url, model) if args.speed else validity(args.url, model, args.schemas, args.answers)


if __name__ == "__main__":
    main()
