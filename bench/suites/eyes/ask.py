#!/usr/bin/env python3
"""A real text model with the eye that train.py taught it: names shape and colour of fresh pictures, asked through OpenAI's own
client, streaming.

    python3 bench/suites/eyes/ask.py --serve target/release/tokenmill SmolLM2-135M-Instruct-Q4_K_M.gguf [--pictures 200]
    python3 bench/suites/eyes/ask.py http://127.0.0.1:8080 [--pictures 20]   # a server of that model, mmproj-shapes.gguf beside it

Pictures by seeds that no training saw, as PNG, JPEG and WebP by turns, four at a time, temperature 0. Right is an answer in which the
first colour and the first shape that it names are the picture's. The last picture is asked about again: the same text, its rows
out of the prefix cache. At least 95 of 100 must be right. Needs openai and pillow."""

import argparse
import base64
import io
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai
from pictures import COLOURS, SHAPES, picture

HERE = pathlib.Path(__file__).parent
QUESTION = "What is in the picture?"
FORMS = [("PNG", {}), ("JPEG", {"quality": 90}), ("WEBP", {"quality": 90})]


def address(image, number):
    form, how = FORMS[number % len(FORMS)]
    file = io.BytesIO()
    image.save(file, form, **how)
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def ask(client, model, url):
    """The answer, in how many pieces it came, and its usage."""
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": parts}],
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, pieces, usage = "", 0, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if choice.delta.content:
                text, pieces = text + choice.delta.content, pieces + 1
    return text, pieces, usage


def named(text):
    """The first colour and the first shape."""
    words = re.findall("[a-z]+", text.lower())
    return tuple(next((word for word in words if word in known), None) for known in (COLOURS, SHAPES))


def check(base, count, first):
    client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    began = time.time()

    def one(number):
        image, colour, shape = picture(first + number)
        url = address(image, number)
        text, pieces, usage = ask(client, model, url)
        assert pieces > 1, f"not streamed: {text!r}"
        assert usage.prompt_tokens > 16, usage
        return named(text) == (colour, shape), colour, shape, text, url

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, range(count)))
    for _, colour, shape, text, _ in (row for row in found if not row[0]):
        print(f"  a {colour} {shape}: {text!r}")
    right = sum(row[0] for row in found)
    again, _, usage = ask(client, model, found[-1][4])
    cached = usage.prompt_tokens_details.cached_tokens
    assert again == found[-1][3], f"asked again: {again!r}, not {found[-1][3]!r}"
    assert cached > 16, f"asked again: only {cached} tokens out of the cache"
    print(f"{right} of {count} pictures named by shape and colour ({right / count:.1%}), {(time.time() - began) / count:.2f} s each")
    print(f"asked again: the same, {cached} of {usage.prompt_tokens} tokens cached")
    return right >= 0.95 * count


def served(binary, model, count, first):
    """The same, with a server of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        beside = pathlib.Path(folder) / pathlib.Path(model).name
        beside.symlink_to(pathlib.Path(model).resolve())
        shutil.copy(HERE / "mmproj-shapes.gguf", folder)
        command = [binary, "serve", str(beside), "--port", str(port), "--ctx", "1k", "--slots", "4"]
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            for _ in range(300):
                assert server.poll() is None, "the server left"
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz")
                    break
                except OSError:
                    time.sleep(0.2)
            return check(f"http://127.0.0.1:{port}", count, first)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("url", nargs="?", default="http://127.0.0.1:8080")
    args.add_argument("--serve", nargs=2, metavar=("BINARY", "MODEL"))
    args.add_argument("--pictures", type=int, default=200)
    args.add_argument("--first-seed", type=int, default=0)
    args = args.parse_args()
    how = (args.pictures, args.first_seed)
    return 0 if (served(*args.serve, *how) if args.serve else check(args.url, *how)) else 1


if __name__ == "__main__":
    sys.exit(main())
