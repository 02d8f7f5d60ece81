#!/usr/bin/env python3
"""Coding agents, each headless against tokenmill: each ends by itself with an answer, and nothing is refused.

    bench/suites/agents/run.py --install            # npm, pip: pinned, once; 3 GB
    bench/suites/agents/run.py MODEL.gguf [--binary tokenmill] [--rows codex "pi, chat" | --all] [--keep DIR] > agents.txt

Runs in a network of its own that has loopback alone (unshare, ip; as root, or where users may have name spaces). Each
row of rows.py gets up to three tries. Small models hardly call a tool unless they must: with --call the first answer does. A proxy between cuts answers at --answer tokens and sees what became of every
request. A row passes if in one try the agent ended by itself with status 0 and said something, and if in no try

* a request was refused, but an upgrade to a WebSocket (426, which agents ask for),
* an answer was not well-formed, or did not say why it ended,
* a request came again, the same but for the length of its answer, after an answer that was not cut.
"""

import argparse, os, pathlib, shutil, signal, string, subprocess, sys, tempfile, time, urllib.request
from dataclasses import dataclass, field

from proxy import Proxy
from rows import AGENTS, NODE, ROWS, TASKS

HOME = pathlib.Path.home() / ".cache" / "tokenmill-agents"
INSIDE = "TOKENMILL_AGENTS_INSIDE"
MODEL_NAME = "local-model"
SERVER, PROXY = 8099, 8098
UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
# An agent does what a model says, unasked: it can write below its scratch folder ($0) alone.
SHUT = 'mount --bind "$0" "$0" && mount -o remount,bind,ro / && cd "$1" && shift && exec "$@"'


def install(folder, agents):
    """Each in a folder of its own, unless that version is there."""
    for name, package in [("node22", NODE)] + [(name, AGENTS[name].package) for name in agents]:
        kind, _, what = package.partition(":")
        home = folder / name
        mark = home / f".ok-{what.replace('/', '+')}"
        if mark.exists():
            continue
        home.mkdir(parents=True, exist_ok=True)
        print(f"installing {what}", flush=True)
        if kind == "npm":
            (home / "package.json").write_text('{"private":true}')
            command = ["npm", "install", "--no-progress", "--loglevel=error", "--no-audit", "--no-fund", what]
        else:
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
            command = [str(home / "bin" / "pip"), "install", "--quiet", what]
        subprocess.run(command, cwd=home, check=True)
        mark.touch()


def alone():
    """Starts this program again where there is no network but loopback."""
    if os.environ.get(INSIDE):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        links = os.listdir("/sys/class/net") if os.path.isdir("/sys/class/net") else []
        routes = pathlib.Path("/proc/net/route").read_text().splitlines()[1:]
        assert not routes, f"there is a way out: {links} {routes}"
        return
    rootless = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = [*UNSHARE, "--net", *rootless, sys.executable, *sys.argv]
    os.execvpe("unshare", command, {**os.environ, INSIDE: "1"})


@dataclass
class Try:
    """What came of one run of an agent."""

    status: int | None  # None: it was ended
    said: str
    log: str
    seconds: float
    seen: list = field(default_factory=list)

    def answered(self, agent):
        text = any(letter.isalnum() for letter in self.said)
        return self.status == 0 and text and not any(mark in self.said for mark in agent.failed)

    def faults(self):
        """What is the server's fault."""
        found, before = [], {}
        for seen in self.seen:
            where = f"{seen.method} {seen.path}"
            if seen.refused:
                found.append(f"{where} {seen.status}: {seen.error}")
            elif seen.error:
                found.append(f"{where}: {seen.error}")
            last = before.get(seen.asked)
            if seen.method == "POST" and last and last.finish and not (last.cut or last.left):
                found.append(f"{where} came again after {last.finish}")
            before[seen.asked] = seen
        return found


class Suite:
    def __init__(self, args):
        self.args, self.agents = args, args.agents
        keep = pathlib.Path(args.keep) if args.keep else None
        if keep:
            keep.mkdir(parents=True, exist_ok=True)
        self.keep = keep
        self.proxy = Proxy(PROXY, SERVER, args.answer, args.call)
        self.node = self.agents / "node22" / "node_modules" / "node" / "bin"

    def words(self, row, home):
        program = self.agents / row.agent / AGENTS[row.agent].program
        words = {
            "URL": f"http://127.0.0.1:{PROXY}",
            "MODEL": MODEL_NAME,
            "KEY": "sk-none",
            "HOME": str(home),
            "BIN": str(program),
            "CONTEXT": str(self.args.ctx),
            "ANSWER": "4096",
        }
        more = {name: string.Template(text).safe_substitute(words) for name, text in row.words.items()}
        return {**words, **more}

    def run(self, row, task):
        """One try, in a home and a folder of its own."""
        agent = AGENTS[row.agent]
        with tempfile.TemporaryDirectory(prefix="agent-") as scratch:
            home, folder = pathlib.Path(scratch, "home"), pathlib.Path(scratch, "work")
            words = {**self.words(row, home), "TASK": TASKS[task]}
            put = lambda text: string.Template(text).safe_substitute(words)  # noqa: E731
            for name, text in {**agent.settings, **row.settings}.items():
                path = home / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(put(text))
            repository(home, folder)
            env = environment(home, self.node) | {k: put(v) for k, v in {**agent.env, **row.env}.items()}
            for command in agent.before:
                start(list(map(put, command)), folder, env, 60)
            if row.settings:  # what a command before wrote gives way
                for name, text in row.settings.items():
                    (home / name).write_text(put(text))
            self.proxy.empty()
            if self.keep:
                self.proxy.folder = self.keep / f"{row.name.replace(', ', '-').replace(' ', '-')}-{int(time.time())}"
                self.proxy.folder.mkdir()
            command = [*agent.command[:-1], *row.flags, agent.command[-1]] if row.flags else agent.command
            found = start(list(map(put, command)), folder, env, self.args.wall)
            found.seen = self.proxy.seen
            if self.keep:
                (self.proxy.folder / "said").write_text(found.said)
                (self.proxy.folder / "log").write_text(found.log)
            return found

    def row(self, row):
        """Up to three tries; the line of the table, and what went wrong."""
        tries, faults = [], []
        agent, task = AGENTS[row.agent], row.tasks[0]
        while len(tries) < self.args.tries:
            tries.append(self.run(row, task))
            faults += tries[-1].faults()
            if tries[-1].answered(agent) or faults:
                break
        last, seen = tries[-1], [seen for one in tries for seen in one.seen]
        posts = [one for one in seen if one.method == "POST"]
        passed = last.answered(agent) and not faults
        version = agent.package.replace("==", "@").rpartition("@")[2]
        cells = [
            row.name,
            version,
            str(len(tries)),
            str(len(posts)),
            str(max((one.input for one in posts), default=0)),
            str(sum(one.cached for one in posts)),
            str(sum(one.calls for one in posts)),
            str(sum(one.cut for one in posts)),
            str(sum(one.upgrade for one in seen)),
            f"{sum(one.seconds for one in tries):.0f}",
            "pass" if passed else "FAIL",
        ]
        print("| " + " | ".join(cells) + " |", flush=True)
        if not passed:
            if not last.answered(agent):
                ended = "was ended" if last.status is None else f"ended with {last.status}"
                faults.append(f"{ended}; said {last.said[-200:]!r}; its log ends {last.log[-600:]!r}")
            for fault in faults[:8]:
                print(f"  {row.name}: {fault}", file=sys.stderr, flush=True)
        return passed


def repository(home, folder):
    folder.mkdir(parents=True)
    home.mkdir(parents=True, exist_ok=True)
    (folder / "a.txt").write_text("alpha\nbeta\n")
    (folder / "b.py").write_text('print("hello")\n')
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost", "-C", str(folder)]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True, env={"PATH": os.environ["PATH"], "HOME": str(home)})


def environment(home, node):
    places = {
        "XDG_CONFIG_HOME": ".config",
        "XDG_DATA_HOME": ".local/share",
        "XDG_CACHE_HOME": ".cache",
        "XDG_STATE_HOME": ".local/state",
    }
    return {
        "HOME": str(home),
        "TMPDIR": str(home.parent),
        "PATH": f"{node}:{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "CI": "1",
        "NO_COLOR": "1",
        "DO_NOT_TRACK": "1",
        "TERM": "dumb",
        **{name: str(home / below) for name, below in places.items()},
    }


def start(command, folder, env, wall):
    """Runs a command in a name space of processes, which ends with it; only what lies beside `folder` can be written."""
    begun = time.monotonic()
    pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    command = [*UNSHARE, "sh", "-c", SHUT, str(folder.parent), str(folder), *command]
    child = subprocess.Popen(command, cwd=folder, env=env, **pipes)
    try:
        said, log = child.communicate(timeout=wall)
        status = child.returncode
    except subprocess.TimeoutExpired:
        child.kill()
        said, log = child.communicate()
        status = None
    seconds = time.monotonic() - begun
    return Try(status, said.decode(errors="replace"), log.decode(errors="replace"), seconds)


def serve(args):
    command = [args.binary, "serve", args.model, "--port", str(SERVER), "--ctx", str(args.ctx)]
    command += ["--served-model-name", MODEL_NAME, "--slots", "4"]
    log = open(pathlib.Path(args.keep) / "server.log", "w") if args.keep else subprocess.DEVNULL
    server = subprocess.Popen(command, stderr=log)
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{SERVER}/readyz", timeout=2)
            return server
        except OSError:
            if server.poll() is not None:
                sys.exit(f"the server ended with {server.returncode}")
            time.sleep(0.2)
    sys.exit("the server is not ready after 2 minutes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a model file, such as .ci/qwen_coder.py makes")
    parser.add_argument("--binary", default=shutil.which("tokenmill") or "target/release/tokenmill")
    parser.add_argument("--agents", type=pathlib.Path, default=HOME, help="where they are installed")
    parser.add_argument("--rows", nargs="+", default=[], help="beginnings of names")
    parser.add_argument("--all", action="store_true", help="other dialects of the same agents too")
    parser.add_argument("--answer", type=int, default=512, help="most tokens of an answer")
    parser.add_argument("--ctx", type=int, default=32768)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--wall", type=float, default=600, help="seconds a try may take")
    parser.add_argument("--keep", help="a folder for requests, answers and logs")
    parser.add_argument("--call", action="store_true", help="the first answer with tools on offer calls one")
    parser.add_argument("--install", action="store_true")
    args = parser.parse_args()
    wanted = tuple(args.rows)
    rows = [row for row in ROWS if (args.all or wanted or not row.more) and row.name.startswith(wanted or "")]
    agents = dict.fromkeys(row.agent for row in rows)
    if args.install:
        return install(args.agents, agents)
    missing = [name for name in agents if not (args.agents / name / AGENTS[name].program).exists()]
    if missing or not args.model:
        parser.error(f"not installed: {', '.join(missing)} (--install)" if missing else "which model?")
    alone()
    if args.keep:
        pathlib.Path(args.keep).mkdir(parents=True, exist_ok=True)
    server = serve(args)
    try:
        suite = Suite(args)
        print("| agent | version | tries | requests | longest prompt | cached | calls | cut | 426 | s | |")
        print("|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
        failed = [row.name for row in rows if not suite.row(row)]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    print(f"{len(rows) - len(failed)} of {len(rows)} pass" + (f"; failed: {', '.join(failed)}" if failed else ""))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
