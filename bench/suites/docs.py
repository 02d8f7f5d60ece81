#!/usr/bin/env python3
"""docs.py PROGRAM [PYTHON]: runs every block of commands in README.md and docs/*.md, in a folder and a home of its own, with PROGRAM as `tokenmill`.

A block is one of ``` or ```sh in which a line begins with a command. One that is not run has `<!-- not run: WHY -->` in the line
above it. `tokenmill serve` is started beside what follows in its block. Blocks of ```python are run by PYTHON, which has the module and pydantic.
Fails where a command does. --list: only says what would run. `bench/suites/docs.py target/release/tokenmill > bench/suites/docs.txt`
"""

import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"^(tokenmill|curl|cargo|pip|sudo|export|python3|sh)\b", re.M)
BLOCK = re.compile(r"(?:^<!-- not run: (?P<why>.*?) -->\n)?^```(?P<lang>\w*)\n(?P<body>.*?)^```", re.S | re.M)


def blocks():
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for found in BLOCK.finditer(path.read_text()):
            is_python = found["lang"] == "python"
            if is_python or found["lang"] in ("", "sh", "bash") and COMMAND.search(found["body"]):
                yield path.relative_to(ROOT), found["body"], found["why"], is_python


def commands(body):
    body = re.sub(r"\\\n\s*", "", body)
    lines = [re.sub(r"(^|\s)#.*$", "", line).strip() for line in body.splitlines()]
    return [line for line in lines if line]


def ready(port, scheme):
    own = ssl.create_default_context()
    own.check_hostname, own.verify_mode = False, ssl.CERT_NONE
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}/readyz", timeout=1, context=own) as answer:
                return answer.status == 200
        except OSError:
            time.sleep(0.1)
    return False


def occupied(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run(lines, env, folder):
    """What went wrong, or None."""
    servers = []
    try:
        for line in lines:
            if line.startswith("tokenmill serve"):
                servers.append(subprocess.Popen(line, shell=True, env=env, cwd=folder, start_new_session=True,
                                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                port = re.search(r"--port (\d+)", line)
                if not ready(port[1] if port else 8080, "https" if "--tls-cert" in line else "http"):
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
        while servers and occupied(8080):  # (a server that drains answers still)
            time.sleep(0.1)


def main():
    all_ = list(blocks())
    if sys.argv[1:] == ["--list"]:
        for path, body, why, _ in all_:
            print(f"{path}: {'not run: ' + why if why else 'run'}: {commands(body)[0]}")
        return
    program, python, failed, left_out = Path(sys.argv[1]).resolve(), sys.argv[2:], 0, 0
    if occupied(8080):
        sys.exit("port 8080 is another server's")
    with tempfile.TemporaryDirectory() as folder:
        tools = Path(folder, "bin")
        tools.mkdir()
        shutil.copy(program, tools / "tokenmill")
        env = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "HF_", "TOKENMILL_"))}
        env |= {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": folder}
        # What a server refuses is a failure of curl too.
        Path(folder, ".curlrc").write_text("fail-with-body\nshow-error\n")
        Path(folder, "bench").symlink_to(ROOT / "bench")
        for path, body, why, is_python in all_:
            if is_python and not python:
                why = why or "no Python with the module was given"
            if why:
                left_out += 1
                print(f"left out  {path}: {commands(body)[0]} ({why})", flush=True)
                continue
            lines = [f"{python[0]} -c {shlex.quote(body)}"] if is_python else commands(body)
            # Settings and keys of one block are none of another's.
            settings = {"XDG_CONFIG_HOME": tempfile.mkdtemp(dir=folder)}
            begun, wrong = time.time(), run(lines, env | settings, folder)
            print(f"{'FAILED' if wrong else 'ran':9} {path}: {commands(body)[0]} ({time.time() - begun:.0f} s)", flush=True)
            if wrong:
                failed += 1
                print("    " + wrong.replace("\n", "\n    "))
    print(f"{len(all_)} blocks, {left_out} left out, {failed} failed")
    sys.exit(1 if failed else 0)


main()
