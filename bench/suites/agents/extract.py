#!/usr/bin/env python3
"""What a launched agent asks, without what it says: method, path and the names of the headers of its first request.

    bench/suites/agents/extract.py RECORDINGS > tests/cases/agents-ask-where-launch-sends-them/requests.json

RECORDINGS is a folder of files AGENT-DIALECT.json, each a list of {method, path, headers, body} as the agent sent them."""

import json, pathlib, sys

# The dialect in which `tokenmill launch` sets each up.
RECORDED = {
    "codex": "codex-responses",
    "opencode": "opencode-chat",
    "kilo": "kilo-chat",
    "qwen": "qwen-chat",
    "pi": "pi-chat",
    "cline": "cline-chat",
    "continue": "continue-chat",
    "aider": "aider-chat",
}


def main():
    folder = pathlib.Path(sys.argv[1])
    rows = []
    for agent, name in RECORDED.items():
        first = json.loads((folder / f"{name}.json").read_text())[0]
        headers = sorted(header.lower() for header in first["headers"])
        rows.append({"agent": agent, "method": first["method"], "path": first["path"], "headers": headers})
    print("[\n  " + ",\n  ".join(json.dumps(row) for row in rows) + "\n]")


main()
