#!/bin/sh
# test.sh [PROFILE]: the header is up to date (where cbindgen is), the example in C compiles against both libraries and runs on the tests'
# tiny model, under valgrind where that is (it finds nothing).
set -eu
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
! command -v cbindgen >/dev/null || crates/capi/header.sh --check
crates/capi/build.sh "${1:-dev}"
cargo run --quiet --package tokenmill-tiny --bin tiny-model -- "$target/tiny.gguf"
for kind in so a; do
  case $kind in
    so) libraries="-L$target/capi -ltokenmill -Wl,-rpath,$target/capi" ;;
    a) libraries="$target/capi/libtokenmill.a -lpthread -ldl -lm -lgcc_s" ;;
  esac
  # shellcheck disable=SC2086
  gcc -std=c99 -Wall -Wextra -Werror -o "$target/capi/chat-$kind" crates/capi/examples/chat.c $libraries
  "$target/capi/chat-$kind" "$target/tiny.gguf" >/dev/null
  echo "example, lib.$kind: ran"
done
if command -v valgrind >/dev/null; then
  # Emulated, AVX2 is slow and its kernels are not what is looked at.
  TOKENMILL_ISA=scalar valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
    "$target/capi/chat-so" "$target/tiny.gguf" >/dev/null
  echo "valgrind: nothing found"
fi
