#!/bin/sh
# Installs Dynamo's published wheels and what the worker needs into a virtual environment: sh setup.sh [FOLDER]
# (ai-dynamo is installed without its dependencies: one of them, aisimulate, comes from an index of its own
# and is of no use here.)
set -e
place=${1:-dynamo}
python3 -m venv "$place"
"$place/bin/pip" install --quiet --no-deps ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1
"$place/bin/pip" install --quiet aiohttp msgspec pyzmq transformers "kubernetes<33" "redis<9" \
    prometheus-client uvloop "pydantic>=2.10.6,<=2.13.5" zstandard
"$place/bin/python" -c "import dynamo.llm, dynamo.common.backend"
echo "ready: $place/bin/python -m dynamo.frontend; $place/bin/python $(dirname "$0")/worker.py --help"
