#!/bin/sh
# test.sh VENV [VALUES [ENCODER]]: builds the wheel with the environment's maturin, installs it there with pydantic and numpy, runs the tests,
# and holds the stubs of types against it.
set -eu
cd "$(dirname "$0")/../.."
venv=$(realpath "$1")
target=${CARGO_TARGET_DIR:-target}
"$venv/bin/maturin" build --quiet --manifest-path crates/python/Cargo.toml --profile "${PROFILE:-dev}" --out "$target/python"
"$venv/bin/pip" install --quiet --force-reinstall --no-deps "$target"/python/tokenmill-*.whl
"$venv/bin/pip" install --quiet pydantic numpy mypy
model=${MODEL:-$target/tiny.gguf}
[ -n "${MODEL:-}" ] || cargo run --quiet --package tokenmill-tiny --bin tiny-model -- "$model"
"$venv/bin/python" crates/python/tests/test_tokenmill.py "$model" "${2:-3}" ${3:+"$3"}
(cd / && "$venv/bin/python" -m mypy.stubtest tokenmill)
