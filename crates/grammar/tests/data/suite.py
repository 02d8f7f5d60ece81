#!/usr/bin/env python3
"""Writes suite.zip: the JSON-Schema-Test-Suite (MIT, github.com/json-schema-org), drafts 4 to
2020-12 with `optional/format`, as the source package of PyPI's `jsonschema` carries it.

    pip download --no-deps --no-binary :all: jsonschema==4.26.0 -d DIR
    python3 suite.py DIR/jsonschema-4.26.0.tar.gz
"""
import json
import pathlib
import sys
import tarfile
import zipfile

DRAFTS = ["draft4", "draft6", "draft7", "draft2019-09", "draft2020-12"]


def main():
    rows = {draft: [] for draft in DRAFTS}
    with tarfile.open(sys.argv[1]) as tar:
        for member in sorted(tar.getmembers(), key=lambda m: m.name):
            parts = pathlib.PurePosixPath(member.name).parts
            if parts[1:3] != ("json", "tests") or not member.name.endswith(".json"):
                continue
            draft, rest = parts[3], parts[4:]
            if draft not in rows or (len(rest) > 1 and rest[:2] != ("optional", "format")):
                continue
            for case in json.load(tar.extractfile(member)):
                row = {"file": "/".join(rest)[:-5], "name": case["description"]}
                row["schema"] = case["schema"]
                row["valid"] = [t["data"] for t in case["tests"] if t["valid"]]
                row["invalid"] = [t["data"] for t in case["tests"] if not t["valid"]]
                rows[draft].append(row)
        licence = tar.extractfile([m for m in tar.getmembers() if m.name.endswith("json/LICENSE")][0]).read()
    out = pathlib.Path(__file__).with_name("suite.zip")
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
        def put(name, data):
            z.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED, 9)
        put("LICENSE", licence)
        for draft, cases in rows.items():
            put(draft + ".jsonl", "".join(json.dumps(c) + "\n" for c in cases))


main()
