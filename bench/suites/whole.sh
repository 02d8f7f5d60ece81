#!/usr/bin/env bash
# The long tests whole: bits over every mode, format and instruction set, simulated schedules and houses, files with a byte
# changed, all draws of chains of samplers. `.ci/run` runs a part of each, another one each commit.
#
#     bench/suites/whole.sh > whole.txt
set -euo pipefail
cd "$(dirname "$0")/../.."
echo "bench/suites/whole.sh, $(git rev-parse --short HEAD), $(date +%F), $(nproc) cores"
TOKENMILL_TESTS=whole cargo test --quiet --workspace --test matrix --test repeatable --test schedules --test house \
  --test hostile_files --test sampling 2>&1 | grep -E '^test result|schedules in|panicked|FAILED'
