#!/usr/bin/env bash
# Clients and frameworks against a running server: each is installed into a folder of its own, pinned, and drives the server by its
# script in crates/server/tests. A line for each: pass, fail, or skip with the reason.
#
#     tokenmill serve QWEN.gguf --ctx 8192 --slots 8
#     bench/suites/clients.sh [URL] [FOLDER] > clients.txt
#
# FOLDER (default: ~/.cache/tokenmill-clients) holds what is installed, 1 GB, and the log of each. JS clients need node 20.
set -uo pipefail
url=${1:-http://127.0.0.1:8080}
folder=${2:-$HOME/.cache/tokenmill-clients}
tests=$(cd "$(dirname "$0")/../../crates/server/tests" && pwd)
mkdir -p "$folder"
failed=0

tell() { printf '%-22s %s\n' "$1" "$2"; }

# python NAME COMMAND PACKAGE...: COMMAND is run by the Python that has the packages.
python() {
  local name=$1 command=$2 home=$folder/$1
  shift 2
  if [ "$(cat "$home/.installed" 2>/dev/null)" != "$*" ]; then
    rm -rf "$home"
    if ! { python3 -m venv "$home" && "$home/bin/pip" install --quiet "$@"; } > "$folder/$name.log" 2>&1; then
      tell "$name" "skip (not installed: $(tail -n 1 "$folder/$name.log"))"
      return
    fi
    echo "$*" > "$home/.installed"
  fi
  judge "$name" "$*" bash -c "$home/bin/$command"
}

# javascript NAME SCRIPT PACKAGE...
javascript() {
  local name=$1 script=$2 home=$folder/$1
  shift 2
  if ! command -v node > /dev/null; then
    tell "$name" "skip (no node)"
    return
  fi
  if [ "$(cat "$home/.installed" 2>/dev/null)" != "$*" ]; then
    rm -rf "$home" && mkdir -p "$home" && echo '{"private":true,"type":"module"}' > "$home/package.json"
    if ! (cd "$home" && npm install --no-audit --no-fund --loglevel=error "$@") > "$folder/$name.log" 2>&1; then
      tell "$name" "skip (not installed: $(tail -n 1 "$folder/$name.log"))"
      return
    fi
    echo "$*" > "$home/.installed"
  fi
  # (Packages are looked for beside the script.)
  cp "$tests/$script" "$home/"
  judge "$name" "$*" node "$home/$script" "$url"
}

judge() {
  local name=$1 packages=$2
  shift 2
  if "$@" > "$folder/$name.log" 2>&1; then
    tell "$name" "pass  $packages"
  else
    tell "$name" "FAIL  $packages: $(tail -n 3 "$folder/$name.log" | cut -c 1-300 | tr '\n' ' ')"
    failed=1
  fi
}

python openai "python $tests/openai_client.py $url" openai==3.57.0
python anthropic "python $tests/anthropic_client.py $url" anthropic==2.14.0
python ollama "python $tests/ollama_client.py $url" ollama==0.6.3
javascript openai-js openai_client.mjs openai@7.59.0
javascript anthropic-js anthropic_client.mjs @anthropic-ai/sdk@1.14.0
javascript ollama-js ollama_client.mjs ollama@0.6.4
javascript ai-sdk ai_sdk_client.mjs ai@7.0.173 @ai-sdk/openai@4.0.118 @ai-sdk/openai-compatible@3.0.92 \
  @ai-sdk/anthropic@4.0.105 zod@4.6.7
python litellm "python $tests/litellm_client.py $url" litellm==1.110.2
python instructor "python $tests/instructor_client.py $url" instructor==1.17.0 anthropic==2.14.0
export TOKENMILL_URL=$url
python langchain "python -m pytest -q -rsx --disable-warnings -o asyncio_mode=auto -p no:cacheprovider $tests/langchain_client.py" \
  langchain-openai==1.7.4 langchain-anthropic==1.7.10 langchain-tests==1.1.9
grep -E '^SKIPPED|^XFAIL|^[0-9]+ (passed|failed)' "$folder/langchain.log" | sed -E 's/ \S*chat_models.py:[0-9]+:/:/; s/ in [0-9.]+s.*//; s/^XFAIL .*::(Test\w+::\w+)/xfail \1/; s/^/  /'
exit $failed
