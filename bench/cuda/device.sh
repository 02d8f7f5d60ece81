#!/usr/bin/env bash
# A GPU's minutes, prepared: builds nothing there.
#
#   bench/cuda/device.sh pack            here: builds, and puts what a GPU's machine needs into bench/cuda/device (< 60 MB)
#   bench/cuda/device.sh check [OUT]     there, 3 minutes at most: are results right?
#   bench/cuda/device.sh speed [OUT]     there, 4 minutes at most: how fast, beside the card's own reads in the same run?
#
# Each section is a process of its own with a time limit; its log is in OUT (default: target/device), a table of all at the end.
# Leaves with 0 if all went well, 1 if something failed, 3 if there is no GPU: then all still runs, and says so.
set -uo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
kit=$root/bench/cuda/device
most_bytes=60000000

pack() {
  set -e
  cargo xtask cubins
  cargo build --release -p tokenmill-cli -p tokenmill-cuda-tests --bin tokenmill --bin device_check
  mkdir -p "$kit"
  local built=${CARGO_TARGET_DIR:-target}/release
  cp "$built/tokenmill" "$built/device_check" crates/cuda/cubins/probe.fatbin "$kit"
  strip "$kit/tokenmill" "$kit/device_check"
  local bytes
  bytes=$(du -sb "$kit" | cut -f 1)
  echo "$kit: $bytes bytes"
  [ "$bytes" -lt "$most_bytes" ] || { echo "more than $most_bytes bytes"; exit 1; }
}

# section NAME SECONDS COMMAND...: one row of the table.
section() {
  local name=$1 limit=$2 code=0 state start
  shift 2
  start=$(date +%s%N)
  printf -- '--- %s\n' "$name"
  timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1 </dev/null || code=$?
  tail -n 5 "$out/$name.log"
  case $code in
    0) state=ok ;;
    3) state="no GPU" ;;
    124 | 137) state="longer than $limit s" ;;
    126 | 127) state="not there" ;;
    *) state="failed ($code)" ;;
  esac
  if [ "$state" != ok ] && [ "$gpu" = no ]; then state="no GPU"; fi
  printf '%s\t%s\t%s\n' "$name" "$state" "$((($(date +%s%N) - start) / 1000000))" >>"$out/sections.tsv"
}

card() {
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader || return 3
  "$kit/tokenmill" doctor
}

check() {
  local names name
  section card 20 bash -c card
  # Conformance at full shapes, recordings of all architectures, equal bits: as the program lists them.
  names=$("$kit/device_check" list 2>/dev/null) || names="conformance rows-alone recordings"
  for name in $names; do
    section "$name" 60 "$kit/device_check" "$name"
  done
  if command -v compute-sanitizer >/dev/null; then
    section sanitizer 60 compute-sanitizer --error-exitcode 1 "$kit/device_check" short
  fi
}

# measure NAME PROMPTS GENERATED BATCHES MAKER...: random weights of a real model's shape, made and measured here.
measure() {
  local name=$1 prompt=$2 generated=$3 batch=$4 maker=$5 model=$scratch/$1
  shift 5
  [ "$maker" != gguf ] || model=$model.gguf
  [ "$gpu" = yes ] || set -- "$@" --layers 1  # (the last one counts)
  section "make-$name" 90 python3 "bench/random_$maker.py" "$model" "$@"
  section "bench-$name" 60 "$kit/tokenmill" bench "$model" --device cuda --json -r 3 \
    -p "$prompt" -n "$generated" --batch "$batch"
  # The same by plain kernels, where that is asked for.
  [ "$plain" = no ] || section "bench-$name-plain" 60 "$kit/tokenmill" bench "$model" --device cuda --mode f32 --json -r 2 \
    -p "$prompt" -n "$generated" --batch 1
  # Behind a long context.
  [ "$deep" = no ] || section "bench-$name-deep" 60 "$kit/tokenmill" bench "$model" --device cuda --json -r 3 \
    -p 512 -n 32 --depth 8192 --batch 1,16
  rm -rf "$model"
}

speed() {
  # In memory where there is room for 16 GB of weights and what is made of them.
  local folder=/tmp
  [ "$(df --output=avail -B 1G /dev/shm 2>/dev/null | tail -n 1)" -lt 40 ] || folder=/dev/shm
  scratch=$(mktemp -d -p "$folder")
  trap 'rm -rf "$scratch"' EXIT
  section card 20 bash -c card
  section read 20 python3 bench/cuda/read.py "$kit/probe.fatbin"
  plain=yes deep=no
  for family in bf16 fp8 gptq; do
    measure "1b-$family" 512 64 1,16 safetensors --family "$family"
  done
  for format in q8_0 q4_k iq3_s; do
    measure "1b-$format" 512 64 1,16 gguf --format "$format"
  done
  plain=no deep=yes
  measure moe-q4_k 512 32 1,16 gguf --format q4_k --shape moe --layers 12
  measure 8b-q4_k 512 32 1 gguf --format q4_k --shape 8b
  measure 8b-bf16 512 32 1 safetensors --family bf16 --shape 8b
  # The machine's state at the end, too: clocks and other work show here.
  section read-again 20 python3 bench/cuda/read.py "$kit/probe.fatbin"
}

[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
what=$1
out=${2:-target/device}
[ "$what" != pack ] || { pack; exit; }
mkdir -p "$out"
out=$(cd "$out" && pwd)
rm -f "$out"/*.log "$out/sections.tsv"
gpu=no
if nvidia-smi -L 2>/dev/null | grep -q GPU; then gpu=yes; fi
export -f card
export kit TOKENMILL_GOLDEN=$root/tests/golden
case $what in
  check) check ;;
  speed) speed ;;
  *) echo "not check, speed or pack: $what"; exit 2 ;;
esac
echo
python3 bench/cuda/table.py "$out" | tee "$out/table.md"
[ "$gpu" = yes ] || exit 3
! cut -f 2 "$out/sections.tsv" | grep -qvx ok
