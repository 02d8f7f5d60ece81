"""Holds what lm-evaluation-harness found against tokenmill's own log-probabilities: lm_eval.py SAMPLES TOKENIZER TOKENMILL MODEL

Each sample's text is made of tokens as the harness does it, scored by `tokenmill score --json`, and the sums compared."""
import functools
import glob
import json
import subprocess
import sys

from transformers import AutoTokenizer

samples, folder, tokenmill, model = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
encode = lambda text: tokenizer.encode(text, add_special_tokens=False)


@functools.cache
def scored(ids):
    told = subprocess.run([tokenmill, "score", model, "--ids", ids, "--json"], check=True, capture_output=True, text=True).stdout
    return [json.loads(line)["logprob"] for line in told.splitlines()][1:]


def score(ids):
    """ln p of each token but the first."""
    return scored(",".join(map(str, ids)))


def pair(context, continuation):
    blanks = len(context) - len(context.rstrip())
    if blanks:
        context, continuation = context[:-blanks], context[-blanks:] + continuation
    whole, before = encode(context + continuation), encode(context)
    return sum(score(whole)[len(before) - 1:])


def rolling(text):
    # The harness begins with the token that begins texts, else with one that ends them.
    begin = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    return sum(score([begin] + encode(text)))


count, worst = 0, 0.0
for path in sorted(glob.glob(f"{samples}/**/samples_*.jsonl", recursive=True)):
    for line in open(path):
        sample = json.loads(line)
        for asked, told in zip(sample["arguments"].values(), sample["resps"]):
            told = told[0][0] if isinstance(told[0], list) else told[0]
            arguments = [asked[name] for name in sorted(asked)]
            own = pair(*arguments) if len(arguments) == 2 else rolling(arguments[0])
            worst, count = max(worst, abs(float(told) - own)), count + 1
print(f"{count} log-likelihoods, the largest difference from tokenmill score {worst:.2e} nats")
sys.exit(count == 0 or worst > 1e-3)
