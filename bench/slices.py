#!/usr/bin/env python3
"""Runs commands in slices of time: all but one are stopped, each runs for a slice in its turn.

    bench/slices.py 0.25 -- tokenmill bench m.gguf -p 16 -n 384 -r 1 -- llama-bench -m m.gguf -p 0 -n 384 -r 1

Speeds of a noisy machine change within seconds, so runs one after the other compare moments. Here all commands
meet the same moments. A command that times itself counts the time it was stopped: with two commands its rate is
half of what it would be alone, so only ratios say something, and only of commands that run about as long. What a
command does outside its timed part must be short against that part; of `tokenmill bench` use figures of long
repetitions (it probes memory between steps, about a twentieth of the time, which it does not count).
Linux; waits until all have ended, then prints what each said."""

import os
import signal
import subprocess
import sys
import threading
import time


def main() -> None:
    if len(sys.argv) < 4 or sys.argv[2] != "--":
        sys.exit(__doc__)
    seconds = float(sys.argv[1])
    commands: list[list[str]] = []
    for word in sys.argv[2:]:
        if word == "--":
            commands.append([])
        else:
            commands[-1].append(word)
    running = []
    for command in commands:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        os.killpg(process.pid, signal.SIGSTOP)
        running.append(process)
    said = [""] * len(running)

    def read(i: int) -> None:
        said[i] = running[i].stdout.read()

    readers = [threading.Thread(target=read, args=(i,)) for i in range(len(running))]
    for reader in readers:
        reader.start()
    try:
        turn = 0
        while any(process.poll() is None for process in running):
            process = running[turn % len(running)]
            turn += 1
            # The turn of one that has ended is left empty: the others keep their part of the time.
            if process.poll() is None:
                signal_group(process, signal.SIGCONT)
            time.sleep(seconds)
            signal_group(process, signal.SIGSTOP)
    finally:
        for process in running:
            signal_group(process, signal.SIGKILL)
    for reader in readers:
        reader.join()
    for command, text in zip(commands, said):
        print("##", " ".join(command))
        print(text)


def signal_group(process: subprocess.Popen, what: int) -> None:
    if process.poll() is None:
        try:
            os.killpg(process.pid, what)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    main()
