#!/usr/bin/env python3
"""Speculation keeps every token: the same seeded requests to two running servers of one model, one with drafts, one without (standard library alone).

    fidelio serve MODEL --port 8001 --draft off & fidelio serve MODEL --port 8002 --draft VIEW &
    tools/check_drafts.py http://127.0.0.1:8001 http://127.0.0.1:8002 [--prompts 500] [--temperatures 0,0.3,0.7,1] [--tokens 64] [--clients 8]

Prompts are beginnings of paragraphs of --text. Exit status 1 if an answer differs, or if nothing was drafted."""
import argparse
import json
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("plain")
parser.add_argument("drafting")
parser.add_argument("--prompts", type=int, default=500)
parser.add_argument("--temperatures", default="0,0.3,0.7,1")
parser.add_argument("--tokens", type=int, default=64)
parser.add_argument("--clients", type=int, default=8)
parser.add_argument("--text", default="models/data/docs-heldout.txt")
args = parser.parse_args()

paragraphs = [" ".join(p.split()[:24]) for p in open(args.text).read().split("\n\n")]
prompts = list(dict.fromkeys(p for p in paragraphs if len(p) > 40))[: args.prompts]


def answer(server, prompt, temperature, seed):
    body = json.dumps({"prompt": prompt, "max_tokens": args.tokens, "temperature": temperature, "top_p": 0.95, "seed": seed, "logprobs": 0})
    request = urllib.request.Request(server + "/v1/completions", body.encode(), {"Content-Type": "application/json"})
    choice = json.load(urllib.request.urlopen(request, timeout=600))["choices"][0]
    return choice["text"], choice["finish_reason"], choice["logprobs"]["token_logprobs"]


def counted(server, name):
    found = re.search(rf"^vllm:{name}(?:\{{[^}}]*\}})? ([0-9.e+]+)$", urllib.request.urlopen(server + "/metrics").read().decode(), re.M)
    return float(found.group(1)) if found else 0.0


failed = 0
for temperature in map(float, args.temperatures.split(",")):
    drafts = [counted(args.drafting, f"spec_decode_num_{what}_tokens_total") for what in ("draft", "accepted")]
    with ThreadPoolExecutor(args.clients) as pool:
        both = [list(pool.map(lambda i: answer(server, prompts[i], temperature, i), range(len(prompts)))) for server in (args.plain, args.drafting)]
    differ = sum(a != b for a, b in zip(*both))
    drafted, accepted = [counted(args.drafting, f"spec_decode_num_{what}_tokens_total") - before for what, before in zip(("draft", "accepted"), drafts)]
    tokens = sum(len(a[2]) for a in both[0])
    print(f"temperature {temperature}: {len(prompts)} answers, {tokens} tokens, {differ} differ; {drafted:.0f} drafted, {accepted:.0f} accepted ({accepted / max(drafted, 1):.3f})", flush=True)
    failed += differ > 0 or drafted == 0
raise SystemExit(failed > 0)
