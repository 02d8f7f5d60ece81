#!/usr/bin/env python3
"""doors.py TOKENMILL MODEL RUST C PYTHON [ROUNDS [TOKENS [OTHER]]]: the speed of one answer through each door, beside `tokenmill run`.

RUST and C are programs (`cargo build --release --example speed`; `crates/capi/build.sh`, then
`cc -O2 -Itarget/capi bench/suites/doors/speed.c -Ltarget/capi -ltokenmill -Wl,-rpath,$PWD/target/capi -o speed-c`), PYTHON is one that has the
module; OTHER is another build of tokenmill. Each round asks the same question of all, the order turned by one each time. Prints each round, the medians, and the share of `run`;
the processor's seconds of a whole process too, which another program beside it changes least (`taskset -c 1 bench/suites/doors.py …`: of one thread, none of them waiting for
another). Fails where a door generates another number of tokens.
"""

import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path

SCRIPT = str(Path(__file__).parent / "doors" / "speed.py")
QUESTION = "Why is the sky blue, and why is it red when the sun goes down?"


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    tokenmill, model, rust, c, python = sys.argv[1:6]
    rounds, tokens = (int(value) for value in [*sys.argv[6:8], *["9", "200"][len(sys.argv[6:8]):]])
    rest = [model, QUESTION, str(tokens)]
    doors = {
        "run": [tokenmill, "run", model, QUESTION, "--temp", "0", "-n", str(tokens), "--json"],
        "Rust": [rust, *rest],
        "C": [c, *rest],
        "Python": [python, SCRIPT, *rest],
    }
    if len(sys.argv) > 8:
        doors["other"] = [sys.argv[8], *doors["run"][1:]]
    found = {name: [] for name in doors}
    names = list(doors)
    for at in range(rounds):
        for name in names[at % len(names):] + names[:at % len(names)]:
            begun = processor_seconds()
            done = subprocess.run(doors[name], stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{name}: {done.stderr}")
            found[name].append(json.loads(done.stdout.splitlines()[-1]) | {"processor_s": processor_seconds() - begun})
    print(f"{Path(model).name}, {tokens} tokens at most, {rounds} rounds")
    medians, seconds = {}, {}
    for name, all_ in found.items():
        rates = [one["tok_s"] for one in all_]
        medians[name] = statistics.median(rates)
        first = statistics.median(one["first_token_s"] for one in all_)
        seconds[name] = statistics.median(one["processor_s"] for one in all_)
        print(f"{name:7} {medians[name]:6.1f} tok/s ({medians[name] / medians['run']:.3f} of run)  first token after {first * 1000:.0f} ms  "
              f"processor {seconds[name]:.2f} s ({seconds[name] / seconds['run']:.3f})  "
              f"rounds: {' '.join(f'{rate:.1f}' for rate in rates)}")
    counts = {name: {one["completion_tokens"] for one in all_} for name, all_ in found.items()}
    if any(count != counts["run"] for count in counts.values()):
        sys.exit(f"not the same number of tokens: {counts}")


main()
