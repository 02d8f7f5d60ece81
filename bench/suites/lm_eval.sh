#!/usr/bin/env bash
# lm-evaluation-harness (local-completions) against a running server: two small tasks of our own, and what it finds held against
# `tokenmill score`.
#
#     tokenmill serve QWEN.gguf --ctx 4096
#     bench/suites/lm_eval.sh QWEN.gguf [URL] [FOLDER] > lm_eval.txt
#
# FOLDER (default: ~/.cache/tokenmill-lm-eval) holds what is installed (2 GB), the tokenizer that transformers makes of the model file, and the
# samples. TOKENMILL is the program (default: tokenmill).
set -euo pipefail
model=$1
url=${2:-http://127.0.0.1:8080}
folder=${3:-$HOME/.cache/tokenmill-lm-eval}
tokenmill=${TOKENMILL:-tokenmill}
here=$(cd "$(dirname "$0")" && pwd)
packages=(lm-eval[api]==0.4.13 transformers==5.24.0 gguf==0.19.0 torch==2.15.0)
mkdir -p "$folder"
if [ "$(cat "$folder/.installed" 2>/dev/null)" != "${packages[*]}" ]; then
  python3 -m venv "$folder/venv"
  "$folder/venv/bin/pip" install --quiet "${packages[@]}"
  echo "${packages[*]}" > "$folder/.installed"
fi
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TOKENIZERS_PARALLELISM=false HF_HOME=$folder/hf
rm -rf "$folder/tasks" "$folder/samples"
mkdir -p "$folder/tasks"
cp "$here"/lm_eval/*.jsonl "$folder/tasks/"
for task in "$here"/lm_eval/*.yaml; do sed "s|FOLDER|$folder/tasks|" "$task" > "$folder/tasks/$(basename "$task")"; done
"$folder/venv/bin/python" - "$model" "$folder/tokenizer" << 'PYTHON'
import os, sys
from transformers import AutoTokenizer
folder, name = os.path.split(os.path.abspath(sys.argv[1]))
AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(sys.argv[2])
PYTHON
name=$(curl -s "$url/v1/models" | "$folder/venv/bin/python" -c 'import json,sys; print(json.load(sys.stdin)["data"][0]["id"])')
ask() { # NAME TASKS ARGUMENTS: prompts in one form, several requests at once
  echo "$1: $3"
  "$folder/venv/bin/lm_eval" --model local-completions --tasks "$2" --include_path "$folder/tasks" \
    --model_args "model=$name,base_url=$url/v1/completions,tokenizer=$folder/tokenizer,max_length=1024,$3" \
    --log_samples --output_path "$folder/samples/$1" 2> "$folder/$1.log" | grep '|' || { tail -n 20 "$folder/$1.log"; exit 1; }
  "$folder/venv/bin/python" "$here/lm_eval.py" "$folder/samples/$1" "$folder/tokenizer" "$tokenmill" "$model"
}
both=tokenmill_capitals,tokenmill_sentences
ask tokens $both tokenized_requests=True,num_concurrent=1
# (As a text, a whole text loses the token before it: the harness writes that one as none.)
ask texts tokenmill_capitals tokenized_requests=False,num_concurrent=1
ask at-once $both tokenized_requests=True,num_concurrent=4
