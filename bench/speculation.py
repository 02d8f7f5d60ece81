#!/usr/bin/env python3
"""Decode speed with and without drafts, in turn, against a running `tokenmill serve MODEL`.

Usage: speculation.py [URL] [-r ROUNDS] [-n TOKENS]; one JSON line for each workload and mode.
Greedy, so that every mode must give the same text; that is checked.
"""
import argparse
import json
import statistics
import time
import urllib.request

STORY = (
    "The lighthouse keeper wound the clock each evening at six. He counted the ships in his "
    "ledger, noted the wind and the height of the waves, and set a lamp in the western window. "
    "On the third of May a grey boat came in without sails, and nobody was aboard. He wrote "
    "that down as well, closed the ledger, and went to bring the boat into the harbour. "
)
CODE = "\n".join(
    f"def area_{n}(width, height):\n    # {n}: rectangle\n    return width * height + {n}\n"
    for n in ["one", "two", "three", "four", "five", "six"]
)
OPEN = [
    "Tell me about the history of bread.",
    "Why is the sky blue?",
    "Write a short poem about winter.",
    "How do I plan a garden?",
    "Give me advice for a first job interview.",
]


def ask(url, path, body):
    """Text and tokens a second after the first token, by the times at which chunks arrive."""
    body = dict(body, stream=True, stream_options={"include_usage": True}, temperature=0)
    data = json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    text, first, last, usage = "", None, None, None
    with urllib.request.urlopen(request) as reply:
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            now, chunk = time.perf_counter(), json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
                if piece:
                    first, last, text = first or now, now, text + piece
    return text, (usage["completion_tokens"] - 1) / max(last - first, 1e-9), usage


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8080")
    parser.add_argument("-r", type=int, default=5)
    parser.add_argument("-n", type=int, default=200)
    args = parser.parse_args()
    text, chat = "/v1/completions", "/v1/chat/completions"
    rewrite = [{"role": "user", "content": "Rewrite this text: " + STORY}]
    predicted = ask(args.url, chat, {"messages": rewrite, "max_tokens": args.n})[0]
    # As after a small edit: two words are not what was predicted.
    words = predicted.split(" ")
    for at in (len(words) // 3, 2 * len(words) // 3):
        words[at] = "other"
    prediction = {"type": "content", "content": " ".join(words)}
    jobs = {
        "copy": [(text, {"prompt": STORY * 3 + STORY[:40]})],
        "edit": [(text, {"prompt": CODE + "\n" + CODE[:200]})],
        "predicted": [(chat, {"messages": rewrite, "prediction": prediction})],
        "open": [(chat, {"messages": [{"role": "user", "content": q}]}) for q in OPEN],
    }
    for name, requests in jobs.items():
        speeds, texts, counts = {}, {}, {}
        for _ in range(args.r):
            for mode in ["none", "ngram", "suffix"]:
                for i, (path, body) in enumerate(requests):
                    body = dict(body, max_tokens=args.n, draft=mode)
                    found, speed, usage = ask(args.url, path, body)
                    assert texts.setdefault(i, found) == found, (name, mode)
                    speeds.setdefault((mode, i), []).append(speed)
                    counts[mode, i] = usage["completion_tokens_details"]
        # Of several requests: each one's ratio, then their mean.
        median = {key: statistics.median(values) for key, values in speeds.items()}
        for mode in ["none", "ngram", "suffix"]:
            each = [median[mode, i] for i in range(len(requests))]
            ratio = [median[mode, i] / median["none", i] for i in range(len(requests))]
            print(json.dumps({
                "workload": name, "draft": mode, "tok_s": round(statistics.mean(each), 1),
                "ratio": round(statistics.mean(ratio), 3), "least": round(min(ratio), 3),
                "accepted": sum(counts[mode, i]["accepted_prediction_tokens"] for i in range(len(requests))),
                "rejected": sum(counts[mode, i]["rejected_prediction_tokens"] for i in range(len(requests))),
            }), flush=True)


if __name__ == "__main__":
    main()
