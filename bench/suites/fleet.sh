#!/bin/sh
# Two workers behind SMG, in short: sh bench/suites/fleet.sh TOKENMILL MODEL. Half a minute beside SMG's installation.
set -e
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/smg"
"$place/smg/bin/pip" install --quiet smg==1.13.0
python3 "$(dirname "$0")/fleet.py" smg --short --tokenmill "$1" --model "$2" --router "$place/smg/bin/smg"
