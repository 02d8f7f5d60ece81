"""The README's request, 24 times: each answer ends by itself and has none of the words below.

    python3 crates/server/tests/hello.py URL

A small model without limits on sampling rambles, and what it says then is not fit for anybody.
"""

import concurrent.futures
import json
import pathlib
import sys
import urllib.request

UGLY = pathlib.Path(__file__).with_name("ugly_words.txt").read_text().split()
SEEDS = range(24)


def ask(seed):
    body = {"model": "smollm2", "seed": seed, "messages": [{"role": "user", "content": "Hello"}]}
    request = urllib.request.Request(f"{sys.argv[1]}/v1/chat/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        answer = json.load(answer)
    choice = answer["choices"][0]
    return choice["finish_reason"], choice["message"]["content"], answer["usage"]["completion_tokens"]


with concurrent.futures.ThreadPoolExecutor(8) as pool:
    answers = list(pool.map(ask, SEEDS))
wrong = []
for seed, (reason, text, tokens) in zip(SEEDS, answers):
    words = {word.strip(".,;:!?\"'()*").lower() for word in text.split()}
    ugly = sorted(words.intersection(UGLY))
    if reason != "stop" or ugly:
        wrong.append(f"seed {seed}: {reason} after {tokens} tokens, ugly: {ugly}: {text[:200]!r}")
print("\n".join(wrong))
print(f"{len(SEEDS) - len(wrong)} of {len(SEEDS)} answers end by themselves and are clean, "
      f"{min(t for *_, t in answers)} to {max(t for *_, t in answers)} tokens")
sys.exit(bool(wrong))
