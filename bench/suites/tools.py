#!/usr/bin/env python3
"""Calls of a real model: with `required` or a named tool every call that ends is valid under its schema, cuts say so; with
`auto` no malformed call reaches the client as a call.

    tokenmill serve QWEN.gguf --ctx 16384 --slots 16
    python3 bench/suites/tools.py [URL] [--answers 5] [--functions 40]

Forty functions, so many answers each (seeds 1, 2, ...; temperature 1, at most 200 tokens), eight at a time; by turns with
a named tool, required among three, auto among three, and streamed or whole. Needs the package jsonschema."""

import argparse, json, sys, urllib.request
from concurrent.futures import ThreadPoolExecutor

import jsonschema

STR, INT, NUM, BOOL = ({"type": t} for t in ("string", "integer", "number", "boolean"))


def fn(name, what, required=None, /, **members):
    required = list(members) if required is None else required
    schema = {"type": "object", "properties": members, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": what, "parameters": schema}}


def arr(items, **more):
    return {"type": "array", "items": items, **more}


def enum(*values):
    return {"enum": list(values)}


FUNCTIONS = [
    fn("get_weather", "The weather in a city", city=STR, unit=enum("celsius", "fahrenheit")),
    fn("send_mail", "Sends a mail", to={"type": "string", "format": "email"}, subject=STR, body=STR),
    fn("add", "Adds two numbers", a=NUM, b=NUM),
    fn("read_file", "Reads a file", ["path"], path=STR, offset={"type": "integer", "minimum": 0}),
    fn("write_file", "Writes a file", path=STR, content=STR),
    fn("list_files", "Lists a folder", path=STR, recursive=BOOL),
    fn("run_command", "Runs a command", command=STR, timeout={"type": "integer", "minimum": 1, "maximum": 600}),
    fn("search_web", "Searches the web", ["query"], query=STR, results={"type": "integer", "minimum": 1, "maximum": 10}),
    fn("set_alarm", "Sets an alarm", hour={"type": "integer", "minimum": 0, "maximum": 23}, minute={"type": "integer", "minimum": 0, "maximum": 59}),
    fn("translate", "Translates a text", text=STR, to=enum("en", "de", "fr", "zh", "ja")),
    fn("create_event", "Puts an event into the calendar", title=STR, date={"type": "string", "format": "date"}, guests=arr(STR, maxItems=3)),
    fn("convert_money", "Converts money", amount={"type": "number", "minimum": 0}, from_currency=enum("EUR", "USD", "JPY"), to_currency=enum("EUR", "USD", "JPY")),
    fn("play_music", "Plays music", artist=STR, shuffle=BOOL),
    fn("book_table", "Books a table", people={"type": "integer", "minimum": 1, "maximum": 12}, time={"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"}),
    fn("get_stock", "The price of a stock", symbol={"type": "string", "pattern": "^[A-Z]{1,5}$"}),
    fn("turn_light", "Turns a light on or off", room=STR, on=BOOL),
    fn("set_temperature", "Heats a room", room=STR, celsius={"type": "number", "minimum": 5, "maximum": 30}),
    fn("take_note", "Takes a note", text=STR, tags=arr(STR, maxItems=4)),
    fn("define_word", "Looks a word up", word=STR),
    fn("plan_route", "Plans a route", start=STR, end=STR, by=enum("car", "train", "foot")),
    fn("roll_dice", "Rolls dice", count={"type": "integer", "minimum": 1, "maximum": 6}, sides=enum(4, 6, 8, 12, 20)),
    fn("now", "The time"),
    fn("grep", "Searches in files", ["pattern"], pattern=STR, path=STR, ignore_case=BOOL),
    fn("edit_file", "Replaces text in a file", path=STR, edits=arr({"type": "object", "properties": {"old": STR, "new": STR}, "required": ["old", "new"], "additionalProperties": False}, minItems=1, maxItems=2)),
    fn("query_database", "Runs a query", sql=STR, limit={"type": "integer", "minimum": 1}),
    fn("draw_point", "Draws a point", point={"type": "object", "properties": {"x": INT, "y": INT}, "required": ["x", "y"], "additionalProperties": False}, colour=enum("red", "blue")),
    fn("matrix_sum", "Sums a matrix", rows=arr(arr(INT, minItems=2, maxItems=2), minItems=1, maxItems=3)),
    fn("git.commit", "Commits", message=STR, all=BOOL),
    fn("order-pizza", "Orders a pizza", size=enum("S", "M", "L"), toppings=arr(enum("cheese", "ham", "olives"), maxItems=3)),
    fn("nullable", "Takes a name or nothing", name={"type": ["string", "null"]}),
    fn("either", "Takes a number or a word", value={"anyOf": [INT, STR]}),
    fn("count_words", "Counts words", text=STR),
    fn("resize_image", "Resizes an image", width={"type": "integer", "minimum": 1, "maximum": 4096}, height={"type": "integer", "minimum": 1, "maximum": 4096}),
    fn("verify_code", "Checks a code", code={"type": "string", "pattern": "^[0-9]{6}$"}),
    fn("rate", "Rates a thing", thing=STR, stars={"type": "integer", "minimum": 1, "maximum": 5}),
    fn("log_in", "Logs in", user=STR, remember=BOOL),
    fn("set_flags", "Sets flags", flags={"type": "object", "additionalProperties": BOOL, "maxProperties": 3}),
    fn("measure", "Takes a measurement", value=NUM, unit=enum("m", "kg", "s")),
    fn("finish", "Ends the task", ["summary"], summary=STR, success=BOOL),
    fn("ask_user", "Asks the user", question=STR, options=arr(STR, maxItems=3)),
]
BY_NAME = {tool["function"]["name"]: tool["function"] for tool in FUNCTIONS}


def post(url, body):
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        text = answer.read().decode()
    if not body.get("stream"):
        choice = json.loads(text)["choices"][0]
        return choice["message"].get("tool_calls", []), choice["message"]["content"] or "", choice["finish_reason"]
    calls, content, finish = [], "", None
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            delta, finish = choice["delta"], choice["finish_reason"] or finish
            content += delta.get("content") or ""
            for call in delta.get("tool_calls", []):
                if call["index"] == len(calls):
                    calls.append({"function": {"name": call["function"]["name"], "arguments": ""}})
                calls[call["index"]]["function"]["arguments"] += call["function"].get("arguments", "")
    return calls, content, finish


def job(url, model, index, seed):
    tool, mode = FUNCTIONS[index], ("named", "required", "auto")[(index + seed) % 3]
    name = tool["function"]["name"]
    others = [tool] + [FUNCTIONS[(index + step) % len(FUNCTIONS)] for step in (7, 19)]
    choice = {"named": {"type": "function", "function": {"name": name}}}.get(mode, mode)
    body = {"model": model, "messages": [{"role": "user", "content": f"Use the tool {name} now. {tool['function']['description']}."}], "tools": others, "tool_choice": choice, "max_tokens": 200, "seed": seed, "temperature": 1, "stream": seed % 2 == 0}
    calls, content, finish = post(url, body)
    where = f"{name}, seed {seed}, {mode}: {calls} {content!r} {finish}"
    if finish == "length":
        calls = calls[:-1] if body["stream"] else calls
    elif mode != "auto":
        assert calls and finish == "tool_calls", where
        assert not content.strip(), where
    for call in calls:
        function = call["function"]
        assert function["name"] in [other["function"]["name"] for other in others] or mode == "auto", where
        arguments = json.loads(function["arguments"])
        if function["name"] in BY_NAME and mode != "auto":
            jsonschema.Draft202012Validator(BY_NAME[function["name"]]["parameters"]).validate(arguments)
        assert isinstance(arguments, dict), where
    if mode == "named":
        assert {call["function"]["name"] for call in calls} <= {name}, where
    assert "<tool_call>" not in content, where
    return mode, finish


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8080")
    parser.add_argument("--answers", type=int, default=5)
    parser.add_argument("--functions", type=int, default=len(FUNCTIONS))
    args = parser.parse_args()
    with urllib.request.urlopen(args.url + "/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    jobs = [(args.url, model, index, seed) for index in range(args.functions) for seed in range(1, args.answers + 1)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda one: job(*one), jobs))
    for mode in ("named", "required", "auto"):
        ends = [finish for kind, finish in found if kind == mode]
        print(f"{mode}: {len(ends)} requests, " + ", ".join(f"{ends.count(end)} {end}" for end in sorted(set(ends))))


if __name__ == "__main__":
    main()
