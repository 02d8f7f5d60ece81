#!/usr/bin/env bash
# schemathesis against a running server: requests made of /openapi.json, good and bad ones. Fails on any 5xx and on any answer that is outside the
# description: its status, its media type, its body. Models are not changed by it: routes that pull, create, copy, delete and unload are left out.
#
#     tokenmill serve MODEL --port 8080
#     bench/suites/openapi.sh [URL] [FOLDER] > bench/suites/openapi.txt
#
# FOLDER (default: ~/.cache/tokenmill-openapi) holds schemathesis, 100 MB. EXAMPLES (default: 30) are asked of each route, the same ones each time.
# openapi.txt is of EXAMPLES=10 against the simulated model of tests/http (serve-sim).
set -euo pipefail
url=${1:-http://127.0.0.1:8080}
folder=${2:-$HOME/.cache/tokenmill-openapi}
package=schemathesis==4.32.5
if [ "$(cat "$folder/.installed" 2>/dev/null)" != "$package" ]; then
  python3 -m venv "$folder"
  "$folder/bin/pip" install --quiet "$package"
  echo "$package" > "$folder/.installed"
fi
"$folder/bin/schemathesis" run "$url/openapi.json" \
  --url "$url" \
  --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
  --exclude-path-regex '^/(api/(pull|push|create|copy|delete|blobs)|models/)' \
  --max-examples "${EXAMPLES:-30}" --seed 1 --request-timeout 120 --workers 2 --generation-database none --no-color
