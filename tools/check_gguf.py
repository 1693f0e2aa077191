#!/usr/bin/env python3
"""A GGUF file read by fidelio against the same file read by transformers, and against a Hugging Face folder made of it:
logits in FP32, the same tokens of varied texts.

  python tools/check_gguf.py --fidelio build/fidelio --gguf MODEL.gguf [--folder HUGGING_FACE_FOLDER]

Needs torch, transformers and gguf. Exit status 1 if the logits of the file differ from transformers' by more than 1e-5 of
their norm (tests/golden_test.cc derives that), or any text is tokenised otherwise. The folder may have rounded weights
(to BF16, say) and the tokenizer that transformers made of the file: what differs is printed."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXTS = ["def f(x):\n    return x + 1\n", "It's 42, isn't it? caf\u00e9 \u4f60\u597d \u0434\u0430 \u05e9\u05dc\u05d5\u05dd",
         "<|im_start|>user\nHello  world\n\n<|im_end|>\n<|im_start|>assistant\n", "", " ", "\n\n\n", "\t\ta\t b",
         "1234567890 3.14159 1,000,000 \u0663\u0664\u0665", "don't WON'T I'LL we've", "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2192\u2260",
         "a" * 200, "            x", "e\u0301 \u00e9 \ufb01 \u2126", "x\u00a0y\u3000z\u200bw", "<|endoftext|><|im_end", "#include <vector>\r\nint main() {}\r\n",
         "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0928\u092e\u0938\u094d\u0924\u0947", "https://example.org/a?b=c&d=%20#e", "{\"a\": [1, 2.5e-3, null]}"]


def tokens(fidelio, model, text):
    with tempfile.NamedTemporaryFile() as file:
        pathlib.Path(file.name).write_bytes(text.encode())
        run = subprocess.run([fidelio, "tokenize", model, "--file", file.name], check=True, capture_output=True, text=True)
    return json.loads(run.stdout)


def logits(fidelio, model, ids, work):
    (work / "ids.json").write_text(json.dumps(ids))
    subprocess.run([fidelio, "logits", model, "--ids", work / "ids.json", "-o", work / "logits.npy", "--activations", "f32"], check=True)
    return numpy.load(work / "logits.npy").astype("f8")


def distance(a, b):
    return float(numpy.linalg.norm(a - b) / numpy.linalg.norm(b))


def divergence(p, q):
    """Mean KL(p || q) of rows of logits."""
    p, q = (torch.log_softmax(torch.from_numpy(x), -1) for x in (p, q))
    return float((p.exp() * (p - q)).sum(-1).mean())


def respect_splitting(tokenizer, path):
    """transformers (5.23) gives every byte-level tokenizer of a GGUF file GPT-2's splitting. SmolLM's cuts off single digits first."""
    reader = gguf.GGUFReader(path)
    if reader.get_field("tokenizer.ggml.pre").contents() == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fidelio", required=True)
    parser.add_argument("--gguf", required=True, type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.gguf.parent, gguf_file=args.gguf.name)
    model = AutoModelForCausalLM.from_pretrained(args.gguf.parent, gguf_file=args.gguf.name, dtype=torch.float32, attn_implementation="eager")
    good = True
    text = (pathlib.Path(__file__).parent.parent / "models/data/docs-heldout.txt").read_text()[:20000]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][:400]
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits[0].double().numpy()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        ours = logits(args.fidelio, args.gguf, ids, work)
        measured = distance(ours, theirs)
        good &= measured <= 1e-5
        print(f"fidelio on the file against transformers on the file: {measured:.2e} of the norm, first choices "
              f"{(ours.argmax(-1) == theirs.argmax(-1)).mean():.4f} equal")
        if args.folder:
            other = logits(args.fidelio, args.folder, ids, work)
            print(f"fidelio on the folder against fidelio on the file:    {distance(other, ours):.2e} of the norm, KL "
                  f"{divergence(ours, other):.2e}, first choices {(ours.argmax(-1) == other.argmax(-1)).mean():.4f} equal")
    texts = TEXTS + [text[i:i + 500] for i in range(0, 20000, 500)]
    mine = [tokens(args.fidelio, args.gguf, t) for t in texts]
    plain = sum(a == tokenizer(t)["input_ids"] for a, t in zip(mine, texts))
    print(f"tokens of the file against transformers' reading of it:  {plain} of {len(texts)} texts alike")
    respect_splitting(tokenizer, args.gguf)
    alike = sum(a == tokenizer(t)["input_ids"] for a, t in zip(mine, texts))
    print(f"the same with tokenizer.ggml.pre, which it leaves out:   {alike} of {len(texts)}")
    good &= alike == len(texts)
    if args.folder:
        folder = sum(a == tokens(args.fidelio, args.folder, t) for a, t in zip(mine, texts))
        print(f"tokens of the file against the folder's:                 {folder} of {len(texts)}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
