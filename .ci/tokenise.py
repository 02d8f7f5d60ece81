#!/usr/bin/env python3
"""Texts and the ids that the `tokenizers` package gives them with the byte-level vocabulary of a GGUF
file, as crates/text/tests/real_model.rs wants them beside the file.

    tokenise.py MODEL.gguf TEXT     writes MODEL.gguf.inp and MODEL.gguf.out"""

import pathlib
import struct
import sys

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
ODD = ["", " ", "  ", "\n\n\n", "\t x", "1234567890", "٣٤", "naïve café", "日本語のテキスト", "🙂👩‍👩‍👧",
       "e\u0301", "\u00a0nbsp\u2003em", "<|im_start|>user", "don't WE'LL I'D", "a\r\nb\rc", "\u0000\u0001",
       "x" * 300, "https://a.b/c?d=e&f=%20", "    indented(code[0]) != {1: 2};", "ﬁ Ⅷ ½ ²"]


def metadata(path):
    """The key-value pairs of a GGUF file."""
    data, at = pathlib.Path(path).read_bytes(), 8
    sizes = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def number(code):
        nonlocal at
        at += struct.calcsize("<" + code)
        return struct.unpack_from("<" + code, data, at - struct.calcsize("<" + code))[0]

    def value(kind):
        nonlocal at
        if kind == 8:
            length = number("Q")
            at += length
            return data[at - length:at].decode("utf-8", "surrogateescape")
        if kind == 9:
            inner = number("I")
            return [value(inner) for _ in range(number("Q"))]
        return number(sizes[kind])
    number("Q")
    pairs = {}
    for _ in range(number("Q")):
        key = value(8)
        pairs[key] = value(number("I"))
    return pairs


def main():
    path, text = sys.argv[1], pathlib.Path(sys.argv[2]).read_text()
    found = metadata(path)
    tokens, pre = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.pre"]
    merges = [tuple(m.split(" ")) for m in found["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    first = {"smollm": pre_tokenizers.Digits(individual_digits=True),
             "qwen2": pre_tokenizers.Split(Regex(QWEN), "isolated")}[pre]
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre != "qwen2")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_of])
    texts = [t for t in ODD + text.split("\n\n") if t]
    pathlib.Path(path + ".inp").write_bytes("\n__ggml_vocab_test__\n".join(texts).encode())
    ids = (" ".join(map(str, tokenizer.encode(t).ids)) for t in texts)
    pathlib.Path(path + ".out").write_text("\n".join(ids) + "\n")
    print(len(texts), "texts by", pre)


if __name__ == "__main__":
    main()
