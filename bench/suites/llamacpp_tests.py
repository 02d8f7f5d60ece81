"""llama.cpp's own server tests against tokenmill, by what they say of forms: texts that another model writes count as any.

    python3 -m venv V && V/bin/pip install pytest pytest-timeout requests openai wget filelock
    V/bin/python bench/suites/llamacpp_tests.py TOOLS_SERVER MODEL.gguf [PYTEST ARGUMENTS] > report

TOOLS_SERVER is the folder tools/server of llama.cpp's source, with its tests in it. The program is $TOKENMILL (default: tokenmill);
$TOKENMILL_ENCODER and $TOKENMILL_RERANKER are models for vectors and reranking, without which their tests are skipped. Tests that
llamacpp_tests.txt names are skipped, each with its reason there. Servers are started as the tests ask: context, places, keys, names; what tests
set by a flag that is a member of requests here (seed, temperature, n_predict) is said by each request that does not say it."""
import pathlib
import subprocess
import os
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
TESTS = ["completion", "tokenize", "infill", "embedding", "rerank", "basic", "ctx_shift", "ignore_eos", "security", "template", "slot_save", "lora"]


def skips():
    lines = (HERE / "llamacpp_tests.txt").read_text().splitlines()
    rows = [line.split("  ", 1) for line in lines if line.startswith("test_")]
    return {name: reason.strip() for name, reason in rows}


def pytest_collection_modifyitems(items):
    import pytest

    known = skips()
    for item in items:
        name = f"{item.path.name}::{item.name}"
        found = next((known[key] for key in (name, name.split("[")[0], name.split("::")[0]) if key in known), None)
        if found:
            item.add_marker(pytest.mark.skip(reason=found))


def start(server, timeout_seconds=60):
    """Starts tokenmill as a test wants its server."""
    import pytest
    import requests

    names = server.model_alias.split(",") if server.model_alias else []
    wanted = "RERANKER" if server.server_reranking else "ENCODER" if server.server_embeddings else "MODEL"
    model = os.environ.get(f"TOKENMILL_{wanted}")
    if model is None:
        pytest.skip(f"no TOKENMILL_{wanted}")
    arguments = [os.environ.get("TOKENMILL", "tokenmill"), "serve", model, "--port", server.server_port, "--quiet"]
    if names:
        arguments += ["--served-model-name", names[0]]
    slots = server.n_slots or 1
    arguments += ["--slots", slots]
    if server.n_ctx and wanted == "MODEL":
        arguments += ["--ctx", server.n_ctx if server.kv_unified else server.n_ctx // slots]
    if server.api_key:
        arguments += ["--api-key", server.api_key]
    server.process = subprocess.Popen([str(a) for a in arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    import utils

    utils.server_instances.add(server)
    until = time.time() + timeout_seconds
    while time.time() < until and server.process.poll() is None:
        try:
            if requests.get(f"http://127.0.0.1:{server.server_port}/health", timeout=1).status_code == 200:
                return
        except requests.RequestException:
            time.sleep(0.05)
    raise RuntimeError(f"no server: {arguments}")


def saying(ask):
    """Asks with what the test's server was to be started with, where the request says nothing of it."""

    def asked(server, method, path, data=None, *rest, **named):
        if method == "POST" and path in ("/completion", "/infill") and isinstance(data, dict):
            flags = {"seed": server.seed, "temperature": server.temperature, "n_predict": server.n_predict}
            data = {name: value for name, value in flags.items() if value is not None} | data
        return ask(server, method, path, data, *rest, **named)

    return asked


if __name__ == "__main__":
    folder, model, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
    tests = pathlib.Path(folder).resolve() / "tests"
    files = [f"unit/test_{name}.py" for name in TESTS if (tests / f"unit/test_{name}.py").exists()]
    environment = dict(os.environ, PYTHONPATH=f"{HERE}:{tests}", TOKENMILL_MODEL=os.path.abspath(model), PYTHONDONTWRITEBYTECODE="1")
    command = [sys.executable, "-m", "pytest", "-p", "llamacpp_tests", "-q", "-rfEs", "--tb=short", "--timeout=120", "-p", "no:cacheprovider"]
    sys.exit(subprocess.call(command + (rest or files), cwd=tests, env=environment))
else:
    import utils

    utils.ServerProcess.start = start
    utils.ServerProcess.make_request = saying(utils.ServerProcess.make_request)
    utils.ServerProcess.make_stream_request = saying(utils.ServerProcess.make_stream_request)
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    utils.match_regex = lambda *_: True
