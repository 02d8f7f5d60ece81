#!/bin/sh
# test.sh VENV [VALUES]: builds the wheel with the environment's maturin, installs it there with pydantic, runs the tests.
set -eu
cd "$(dirname "$0")/../.."
venv=$1
target=${CARGO_TARGET_DIR:-target}
"$venv/bin/maturin" build --quiet --manifest-path crates/python/Cargo.toml --profile "${PROFILE:-dev}" --out "$target/python"
"$venv/bin/pip" install --quiet --force-reinstall --no-deps "$target"/python/tokenmill-*.whl
"$venv/bin/pip" install --quiet pydantic
cargo run --quiet --package tokenmill-tiny --bin tiny-model -- "$target/tiny.gguf"
"$venv/bin/python" crates/python/tests/test_tokenmill.py "$target/tiny.gguf" "${2:-3}"
