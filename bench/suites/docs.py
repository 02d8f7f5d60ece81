#!/usr/bin/env python3
"""docs.py PROGRAM: runs every block of commands in README.md and docs/*.md, in a folder of its own, with PROGRAM as `tokenmill`.

A block is one of ``` or ```sh in which a line begins with a command. One that is not run has `<!-- not run: WHY -->` in the line
above it. `tokenmill serve` is started beside what follows in its block. Fails where a command does. --list: only says what would run.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"^(tokenmill|curl|cargo|pip|sudo|export)\b", re.M)
BLOCK = re.compile(r"(?:^<!-- not run: (?P<why>.*?) -->\n)?^```(?P<lang>\w*)\n(?P<body>.*?)^```", re.S | re.M)


def blocks():
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for found in BLOCK.finditer(path.read_text()):
            if found["lang"] in ("", "sh", "bash") and COMMAND.search(found["body"]):
                yield path.relative_to(ROOT), found["body"], found["why"]


def commands(body):
    body = re.sub(r"\\\n\s*", "", body)
    lines = [re.sub(r"(^|\s)#.*$", "", line).strip() for line in body.splitlines()]
    return [line for line in lines if line]


def ready():
    for _ in range(600):
        try:
            with urllib.request.urlopen("http://127.0.0.1:8080/readyz", timeout=1) as answer:
                return answer.status == 200
        except OSError:
            time.sleep(0.1)
    return False


def run(lines, env, folder):
    """What went wrong, or None."""
    servers = []
    try:
        for line in lines:
            if line.startswith("tokenmill serve"):
                servers.append(subprocess.Popen(line, shell=True, env=env, cwd=folder, start_new_session=True,
                                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                if not ready():
                    return f"{line}: no server after 60 s"
                continue
            done = subprocess.run(line, shell=True, env=env, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900)
            if done.returncode:
                return f"{line}: {done.returncode}: {(done.stderr or done.stdout)[-400:]}"
        return None
    finally:
        for server in servers:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()


def main():
    all_ = list(blocks())
    if sys.argv[1:] == ["--list"]:
        for path, body, why in all_:
            print(f"{path}: {'not run: ' + why if why else 'run'}: {commands(body)[0]}")
        return
    program, failed = Path(sys.argv[1]).resolve(), 0
    with tempfile.TemporaryDirectory() as folder:
        tools = Path(folder, "bin")
        tools.mkdir()
        shutil.copy(program, tools / "tokenmill")
        env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
        for path, body, why in all_:
            if why:
                print(f"left out  {path}: {commands(body)[0]} ({why})", flush=True)
                continue
            begun, wrong = time.time(), run(commands(body), env, folder)
            print(f"{'FAILED' if wrong else 'ran':9} {path}: {commands(body)[0]} ({time.time() - begun:.0f} s)", flush=True)
            if wrong:
                failed += 1
                print("    " + wrong.replace("\n", "\n    "))
    print(f"{len(all_)} blocks, {sum(1 for b in all_ if b[2])} left out, {failed} failed")
    sys.exit(1 if failed else 0)


main()
