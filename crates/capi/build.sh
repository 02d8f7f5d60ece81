#!/bin/sh
# build.sh [PROFILE]: libtokenmill.so and libtokenmill.a of the profile (release, or dev) into target/capi, with the header.
set -eu
cd "$(dirname "$0")/../.."
profile=${1:-release}
folder=$([ "$profile" = dev ] && echo debug || echo "$profile")
target=${CARGO_TARGET_DIR:-target}
cargo rustc --lib --package tokenmill-capi --profile "$profile" --crate-type cdylib,staticlib -- -C link-arg=-Wl,-soname,libtokenmill.so.1
mkdir -p "$target/capi"
cp "$target/$folder/libtokenmill_capi.so" "$target/capi/libtokenmill.so.1"
ln -sf libtokenmill.so.1 "$target/capi/libtokenmill.so"
cp "$target/$folder/libtokenmill_capi.a" "$target/capi/libtokenmill.a"
cp crates/capi/include/tokenmill.h "$target/capi/"
