"""Writes src/text/testdata/tokenizer_*.json: small tokenisers of each family and what Hugging Face `tokenizers` makes of texts.

  python tools/make_tokenizer_fixtures.py [NAME...]

A NAME.json is a tokenizer.json; cases/NAME.json has
  "encode": [[text, add_special, ids], ...]    fuzzed strings
  "decode": [[ids, text without special tokens, text with them], ...]   the ids of such strings and random ids
  "files":  {file of models/data: SHA-256 of its ids in decimal with one space between}
The strings and ids are random with a fixed seed; the vocabularies are trained here (tools/tokenizer_families.py).
"""
import hashlib
import json
import sys

from tokenizers import Tokenizer

import tokenizer_families as families

FOLDER = families.ROOT / "src" / "text" / "testdata"
STRINGS, DECODES, VOCABULARY, LONGEST = 160, 60, 1000, 70


def write(path, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text.replace("],[", "],\n[") + "\n", encoding="utf-8")


def cases_of(oracle, seed, make=families.random_text):
    texts = [t for t in families.fuzz_texts(oracle, 8 * STRINGS, seed, make) if len(t) <= LONGEST][:STRINGS]
    encode = [[t, i % 4 != 3, oracle.encode(t, add_special_tokens=i % 4 != 3).ids] for i, t in enumerate(texts)]
    sequences = [ids for _, _, ids in encode[:DECODES // 3]] + families.fuzz_ids(oracle, DECODES - DECODES // 3, seed)
    decode = [[ids, oracle.decode(ids, skip_special_tokens=True), oracle.decode(ids, skip_special_tokens=False)]
              for ids in sequences]
    files = {}
    for name in ("docs-heldout.txt", "docs-calibration.txt"):
        ids = oracle.encode((families.DATA / name).read_text(encoding="utf-8")).ids
        files[name] = hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()
    return {"encode": encode, "decode": decode, "files": files}


def main():
    FOLDER.mkdir(exist_ok=True)
    names = sys.argv[1:]
    for seed, (name, make) in enumerate(families.FAMILIES.items()):
        if names and name not in names:
            continue
        oracle = make(VOCABULARY)
        write(FOLDER / f"tokenizer_{name}.json", json.loads(oracle.to_str()))
        texts = families.marked_text if name == "qwen35" else families.random_text
        write(FOLDER / "cases" / f"tokenizer_{name}.json", cases_of(oracle, 100 + seed, texts))
    for seed, name in enumerate(("quill-26m", "quill-1m")):
        if names and name not in names:
            continue
        oracle = Tokenizer.from_file(str(families.ROOT / "models" / name / "tokenizer.json"))
        write(FOLDER / "cases" / f"tokenizer_{name}.json", cases_of(oracle, 200 + seed))


if __name__ == "__main__":
    main()
