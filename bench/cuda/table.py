#!/usr/bin/env python3
"""One table of what device.sh ran: sections.tsv (name, state, milliseconds), and the figures in the logs of `read` and `bench-*`.

    python3 bench/cuda/table.py OUT"""

import json
import pathlib
import sys


def objects(log):
    """The lines of a log that are JSON objects."""
    for line in log.read_text(errors="replace").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def main():
    out = pathlib.Path(sys.argv[1])
    rows = [line.split("\t") for line in (out / "sections.tsv").read_text().splitlines()]
    logs = {name: list(objects(out / f"{name}.log")) for name, *_ in rows}
    reads = [o["read_gb_s"] for name in ("read", "read-again") for o in logs.get(name, []) if "read_gb_s" in o]
    most = max(reads, default=None)
    print("| section | state | s | figures |\n|---|---|---|---|")
    for name, state, ms in rows:
        figures = []
        for o in logs[name]:
            if "read_gb_s" in o:
                figures.append(f"{o['card']}: {o['read_gb_s']:.0f} GB/s read")
            if "test" in o and "tok_s" in o:
                part = f" = {100 * o['gb_s'] / most:.0f} % of read" if most and "gb_s" in o else ""
                bytes_ = f" ({o['gb_s']:.0f} GB/s{part})" if "gb_s" in o else ""
                figures.append(f"{o['test']}: {o['tok_s']['median']:.0f} tok/s{bytes_}")
        print(f"| {name} | {state} | {int(ms) / 1e3:.1f} | {'; '.join(figures)} |")
    states = [state for _, state, _ in rows]
    print(f"\n{states.count('ok')} of {len(states)} sections ok, {sum(int(ms) for *_, ms in rows) / 1e3:.0f} s")


main()
