#!/bin/sh
# test.sh [PROFILE]: the header is up to date (where cbindgen is), the example in C compiles against both libraries and runs on the tests'
# tiny model: as it is, with the compiler's sanitizers, under valgrind where that is (neither finds anything). MODEL=FILE: another model, nothing is built for it.
set -eu
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
# (Older ones do not read the sources' edition.)
case $(cbindgen --version 2>/dev/null) in
  "") echo "the header is not checked: there is no cbindgen" ;;
  *\ 0.1?.* | *\ 0.2[0-8].*) echo "the header is not checked: $(cbindgen --version) is too old: cargo install cbindgen" ;;
  *) crates/capi/header.sh --check ;;
esac
crates/capi/build.sh "${1:-dev}"
model=${MODEL:-$target/tiny.gguf}
[ -n "${MODEL:-}" ] || cargo run --quiet --package tokenmill-tiny --bin tiny-model -- "$model"
for kind in so a; do
  case $kind in
    so) libraries="-L$target/capi -ltokenmill -Wl,-rpath,$target/capi" ;;
    a) libraries="$target/capi/libtokenmill.a -lpthread -ldl -lm -lgcc_s" ;;
  esac
  # shellcheck disable=SC2086
  gcc -std=c99 -Wall -Wextra -Werror -o "$target/capi/chat-$kind" crates/capi/examples/chat.c $libraries
  "$target/capi/chat-$kind" "$model" >/dev/null
  echo "example, lib.$kind: ran"
done
# The library's own memory goes through the same malloc: what it leaks or frees twice is seen too.
gcc -g -std=c99 -fsanitize=address,undefined -o "$target/capi/chat-asan" crates/capi/examples/chat.c \
  "-L$target/capi" -ltokenmill "-Wl,-rpath,$target/capi"
"$target/capi/chat-asan" "$model" >/dev/null
echo "address and undefined behaviour sanitizers: nothing found"
if command -v valgrind >/dev/null; then
  # Emulated, AVX2 is slow and its kernels are not what is looked at.
  TOKENMILL_ISA=scalar valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
    --suppressions=crates/capi/valgrind.supp "$target/capi/chat-so" "$model" >/dev/null
  echo "valgrind: nothing found"
fi
