"""How fast an answer comes through the Python module, as one line of JSON: speed.py MODEL QUESTION TOKENS"""

import json
import sys
import time

import tokenmill

name, question, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3])
chat = tokenmill.Model(name).chat(temperature=0, max_tokens=tokens)
begun, times = time.monotonic(), []
answer = chat.stream(question)
for _ in answer:
    times.append(time.monotonic() - begun)
generated = answer.tokens[0]
print(json.dumps({"first_token_s": times[0], "tok_s": (generated - 1) / (times[-1] - times[0]), "completion_tokens": generated}))
