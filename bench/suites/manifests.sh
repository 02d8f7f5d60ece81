#!/bin/sh
# The manifests of integrations/ against the schemas of Kubernetes: sh bench/suites/manifests.sh
# (Resources that Kubernetes itself does not know, such as InferencePool, are named and left out: their schema is their
# project's.)
set -e
cd "$(dirname "$0")/../.."
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet kubernetes-validate==1.37.0 pyyaml
for file in integrations/*/*.yaml; do
    "$place/venv/bin/python" - "$file" "$place" <<'PY'
import sys, yaml
for n, part in enumerate(yaml.safe_load_all(open(sys.argv[1]))):
    if part["apiVersion"].split("/")[0] in ("v1", "apps", "batch", "policy", "autoscaling"):
        yaml.safe_dump(part, open(f"{sys.argv[2]}/{n}.yaml", "w"))
    else:
        print("left out:", part["apiVersion"], part["kind"])
PY
    "$place/venv/bin/kubernetes-validate" --strict "$place"/*.yaml
    rm "$place"/*.yaml
done
