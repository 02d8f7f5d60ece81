#!/bin/sh
# Writes crates/capi/include/tokenmill.h; needs cbindgen (cargo install cbindgen). With --check: says whether it is up to date.
set -eu
cd "$(dirname "$0")"
case "${1:-}" in
  --check) cbindgen --config cbindgen.toml --verify --output include/tokenmill.h . ;;
  *) cbindgen --config cbindgen.toml --output include/tokenmill.h . ;;
esac
