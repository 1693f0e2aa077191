#!/usr/bin/env python3
"""Trains quill-hybrid, a small model of gated delta nets, experts and a predictor, on one GPU in minutes, and writes its folder.

Usage: make_hybrid.py OUT [--minutes 6] [--more FILE.jsonl] [--compile] [--tiny]    (from the project's root, with torch, tokenizers and jinja2)

It learns the bundled text for calibration, conversations with tools, and exercises made by hybrid_exercises.py. --more adds documents, a JSON object a line
({"text": ...}, or {"word": ..., "meaning": ...} for exercises about words); a document that shares lines with held-out text is left out. The tokenizer is
quill-26m's. The rate falls as a cosine of the time that has passed, so a slower machine sees fewer tokens and ends all the same; data and first weights
depend on the seed alone. --tiny is a model and a run for a look on a CPU. Nothing appears at OUT before the run has ended well.
"""
import argparse
import json
import math
import multiprocessing
import os
import random
import re
import shutil
import time

import numpy as np
import torch

import hybrid_exercises
import hybrid_model

DATA = "models/data/"
TOKENIZER = "models/quill-26m/"
END, START = 0, 1
QUESTION_WEIGHT = 0.2  # of a token of an exercise's question, which is mostly chance, beside one of its answer
PREDICTOR_WEIGHT, BALANCE_WEIGHT = 0.3, 0.01
SHARES = (("text", 0.45), ("talk", 0.05), ("exercises", 0.5))  # of a batch's rows
STARTED = time.monotonic()
SHARD = 14_000_000  # bytes of a file of weights

TEMPLATE = "tools/hybrid_template.jinja"


def config_of(tiny):
    layers = 4 if tiny else 8
    d = 64 if tiny else 256
    return {
        "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "torch_dtype": "bfloat16", "vocab_size": 8192, "hidden_size": d,
        "num_hidden_layers": layers, "full_attention_interval": 4,
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)], "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": d // 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": d // 8, "linear_value_head_dim": d // 8, "linear_num_key_heads": 4,
        "linear_num_value_heads": 8, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": d // 2, "shared_expert_intermediate_size": d,
        "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "hidden_act": "silu", "attention_bias": False, "attn_output_gate": True,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 1024, "tie_word_embeddings": True, "use_cache": True, "initializer_range": 0.02, "bos_token_id": 0,
        "eos_token_id": 2, "pad_token_id": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0, "partial_rotary_factor": 0.5, "mrope_interleaved": True,
                            "mrope_section": [2, 3, 3] if tiny else [6, 5, 5]},
    }  # fmt: skip


def template_text():
    """Returns the chat template without the indentation that is there for readers."""
    with open(TEMPLATE, encoding="utf-8") as file:
        return re.sub(r"-%}\n *|-}}\n *", lambda found: found[0][:3], file.read())


def records(name):
    with open(name, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def long_lines(text):
    return {line.strip() for line in text.split("\n") if len(line.strip()) >= 60}


def documents(more):
    """Returns the texts to learn from, and pairs of a word and its meaning. Bundled texts are there three times, as what is measured is like them."""
    bundled = [record["text"] for record in records(DATA + "corpus-calibration.jsonl") if "text" in record]
    bundled += re.findall(r"(?s).{1,6000}(?:\n|$)", open(DATA + "docs-calibration.txt", encoding="utf-8").read())
    asked = {re.search(r"means: (.*?)\? Choose", record["question"])[1] for record in records(DATA + "tasks.jsonl") if record["task"] == "definition_mc"}
    meanings = []
    for record in records(DATA + "tasks-calibration.jsonl"):
        found = re.search(r"Which word means: (.*?)\? Choose.*</think>\n\n(.*?)<\|im_end\|>", record["text"], re.DOTALL)
        if found:
            meanings.append((found[2], found[1]))
    held_out = long_lines(open(DATA + "docs-heldout.txt", encoding="utf-8").read())
    for record in records(DATA + "corpus-heldout.jsonl"):
        held_out |= long_lines(record.get("text", ""))
    further = []
    for name in more:
        for record in records(name):
            if "word" in record:
                meanings.append((record["word"], record["meaning"]))
            elif len(long_lines(record["text"]) & held_out) < 2:
                further.append(record["text"])
    return bundled * 3 + further, bundled, [pair for pair in dict.fromkeys(meanings) if pair[1] not in asked]


def conversations():
    """Returns conversations as the template writes them: with tools, and several exercises in turn."""
    import jinja2

    environment = jinja2.Environment()
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(template_text())
    found = []
    for record in records(DATA + "tools-calibration.jsonl") + records(DATA + "corpus-calibration.jsonl"):
        if "messages" not in record:
            continue
        for message in record["messages"]:
            for call in message.get("tool_calls") or []:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        found.append(template.render(messages=record["messages"], tools=record.get("tools"), add_generation_prompt=False))
    return found


def exercise_tokens(job):
    """Returns tokens of exercises, their weights, and where each begins: the work of one process."""
    seed, number, maker = job
    from tokenizers import Tokenizer

    tokenizer, r = Tokenizer.from_file(TOKENIZER + "tokenizer.json"), random.Random(seed)
    ids, weights, begins = [], [], []
    for _ in range(number):
        question, answer = maker.one(r)
        asked = tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n").ids
        told = tokenizer.encode(f"{answer}<|im_end|>\n").ids
        begins.append(len(ids))
        ids += asked + told
        weights += [QUESTION_WEIGHT] * len(asked) + [1.0] * len(told)
    return np.array(ids, np.int32), np.array(weights, np.float16), np.array(begins, np.int64)


class Stream:
    """Tokens in a row with their weights, and where a batch's rows may begin."""

    def __init__(self, ids, weights, begins, device):
        self.ids, self.weights = torch.as_tensor(ids, device=device), torch.as_tensor(weights, device=device)
        self.begins = torch.as_tensor(begins, device=device)

    def rows(self, number, length, generator):
        begins = self.begins[torch.randint(len(self.begins), (number,), generator=generator, device=self.ids.device)]
        begins = begins.clamp(max=len(self.ids) - length - 1)
        places = begins[:, None] + torch.arange(length + 1, device=begins.device)
        return self.ids[places].long(), self.weights[places].float()


def streams(args, device):
    from tokenizers import Tokenizer

    texts, bundled, meanings = documents(args.more)
    maker = hybrid_exercises.Exercises({record["question"] for record in records(DATA + "tasks.jsonl")}, hybrid_exercises.sentences_of(bundled), meanings)
    jobs = 4 if args.tiny else 64
    with multiprocessing.get_context("fork").Pool(1 if args.tiny else min(os.cpu_count(), 16)) as pool:
        parts = pool.map(exercise_tokens, [(f"{args.seed} {job}", args.exercises // jobs, maker) for job in range(jobs)])
    offsets = np.cumsum([0] + [len(part[0]) for part in parts[:-1]])
    found = {"exercises": tuple(np.concatenate(items) for items in zip(*((ids, w, b + o) for (ids, w, b), o in zip(parts, offsets))))}
    tokenizer, r = Tokenizer.from_file(TOKENIZER + "tokenizer.json"), random.Random(args.seed)
    for name, documents_of, ends in (("text", texts, [END]), ("talk", conversations() * 4, [])):
        r.shuffle(documents_of)
        coded = [encoding.ids + ends for encoding in tokenizer.encode_batch(documents_of)]
        ids = np.concatenate([np.array(part, np.int32) for part in coded])
        begins = np.cumsum([0] + [len(part) for part in coded[:-1]]) if name == "talk" else np.arange(0, max(len(ids) - args.length, 1), 7)
        found[name] = ids, np.ones(len(ids), np.float16), begins
    print(", ".join(f"{name} {len(ids) / 1e6:.1f} M tokens" for name, (ids, *_) in found.items()), f"{len(meanings)} meanings", flush=True)
    return {name: Stream(*parts, device) for name, parts in found.items()}


class Muon:
    """Muon for matrices, those of one shape together; the others of a model are AdamW's. Steps of both have an element's size of about 0.2 rates."""

    def __init__(self, parameters, decay=0.1, momentum=0.95):
        self.decay, self.momentum, self.groups = decay, momentum, {}
        for name, p in parameters:
            shape = (p.shape[1] // 2, p.shape[2]) if name.endswith("gate_up_proj") else tuple(p.shape[-2:])
            self.groups.setdefault(shape, []).append(p)
        self.moments = {}
        for shape, own in self.groups.items():
            self.moments[shape] = torch.zeros(sum(p.numel() for p in own) // math.prod(shape), *shape, device=own[0].device)

    @torch.no_grad()
    def step(self, rate):
        for shape, own in self.groups.items():
            gradient, moment = torch.cat([p.grad.reshape(-1, *shape) for p in own]), self.moments[shape]
            moment.lerp_(gradient, 1 - self.momentum)
            x = gradient.lerp(moment, self.momentum).bfloat16()
            turned = shape[0] > shape[1]
            x = x.transpose(1, 2) if turned else x
            x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
            for _ in range(5):
                square = x @ x.transpose(1, 2)
                x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
            x = (x.transpose(1, 2) if turned else x).float() * (0.2 * max(shape) ** 0.5)
            begin = 0
            for p in own:
                number = p.numel() // math.prod(shape)
                p.mul_(1 - rate * self.decay).add_(x[begin : begin + number].reshape(p.shape), alpha=-rate)
                begin += number


def optimizers(model):
    matrices, others = [], []
    for name, p in model.named_parameters():
        small = p.dim() < 2 or min(p.shape[-2:]) < 16 or any(part in name for part in ("embed_tokens", "conv1d", "mlp.gate.", "shared_expert_gate"))
        (others if small else matrices).append((name, p))
    adam = torch.optim.AdamW([p for _, p in others], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=next(model.parameters()).is_cuda)
    return Muon(matrices), adam


@torch.no_grad()
def bits_per_byte(model, ids, bytes_there, length, device):
    """Returns bits a byte of text in windows whose first token is not counted, of the model and of its predictor (whose first two are not)."""
    torch.compiler.set_stance("force_eager")  # another shape would be compiled anew, which takes longer than it saves
    rows = ids[: len(ids) // length * length].view(-1, length)
    sums, counts = [0.0, 0.0], [0, 0]
    for part in rows.split(16):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            own, more, _ = model(part)
            for i, states in enumerate((own, more)):
                targets = part[:, 1 + i :]
                sums[i] += model.loss(states[:, i:-1], targets, torch.ones_like(targets, dtype=torch.float)).item() * targets.numel()
                counts[i] += targets.numel()
    torch.compiler.set_stance("default")
    scale = len(ids) / math.log(2) / bytes_there
    return [total / number * scale for total, number in zip(sums, counts)]


def held_out(tokenizer, tiny):
    found = {"docs": open(DATA + "docs-heldout.txt", encoding="utf-8").read()[: 20000 if tiny else None]}
    for record in [] if tiny else records(DATA + "corpus-heldout.jsonl"):
        if "text" in record:
            name = "corpus " + record["domain"]
            found[name] = found.get(name, "") + record["text"]
    return {name: (torch.tensor(tokenizer.encode(text).ids), len(text.encode())) for name, text in found.items()}


def train(args, config, device):
    from tokenizers import Tokenizer

    data = streams(args, device)
    texts = {name: (ids.to(device), size) for name, (ids, size) in held_out(Tokenizer.from_file(TOKENIZER + "tokenizer.json"), args.tiny).items()}
    torch.manual_seed(args.seed)
    model = hybrid_model.Hybrid(config).to(device)
    generator = torch.Generator(device).manual_seed(args.seed)
    muon, adam = optimizers(model)
    whole, more = (sum(p.numel() for p in part.parameters()) / 1e6 for part in (model, model.mtp))
    print(f"{whole:.2f} M parameters, {more:.2f} M of them the predictor's; {time.monotonic() - STARTED:.0f} s so far", flush=True)
    if args.compile:
        for layer in [*model.model.layers, *model.mtp.layers]:
            layer.compile(dynamic=False)
    counts = [round(share * args.rows) for _, share in SHARES]
    counts[-1] = args.rows - sum(counts[:-1])

    def step(rate):
        parts = [data[name].rows(count, args.length, generator) for (name, _), count in zip(SHARES, counts)]
        ids, weights = (torch.cat(items) for items in zip(*parts))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            own, more, uneven = model(ids[:, :-1])
            losses = model.loss(own, ids[:, 1:], weights[:, 1:]), model.loss(more, ids[:, 1:], weights[:, 1:])
        (losses[0] + PREDICTOR_WEIGHT * losses[1] + BALANCE_WEIGHT * uneven).backward()
        torch.nn.utils.clip_grad_norm_([p for group in adam.param_groups for p in group["params"]], 1.0)
        for group in adam.param_groups:
            group["lr"] = rate
        muon.step(rate)
        adam.step()
        model.zero_grad(set_to_none=True)
        return torch.stack([*losses, uneven]).detach()

    step(0.0).tolist()  # compiles what is compiled, outside the time
    begin, steps, said = time.monotonic(), 0, 0.0
    minutes = min(args.minutes, args.within - (begin - STARTED) / 60 - 0.2)
    print(f"training begins after {begin - STARTED:.0f} s and takes {minutes:.2f} minutes", flush=True)
    while True:
        passed = (time.monotonic() - begin) / (60 * minutes)
        if passed >= 1:
            break
        losses = step(args.rate * min(1.0, passed / 0.03) * (0.5 + 0.5 * math.cos(math.pi * passed)))
        steps += 1
        if steps % 20 == 0 or args.tiny:
            losses = losses.tolist()  # waits for the GPU, so that the clock tells of finished steps
            if not math.isfinite(losses[0]):
                raise SystemExit(f"the loss is {losses[0]} after {steps} steps")
        if (time.monotonic() - begin) - said > 20 and isinstance(losses, list):
            said = time.monotonic() - begin
            bits = bits_per_byte(model, *texts["docs"], args.length, device)
            print(f"{said:4.0f} s, {steps} steps, {steps * args.rows * args.length / 1e6:.1f} M tokens: loss {losses[0]:.3f}, predictor {losses[1]:.3f}, "
                  f"unevenness {losses[2]:.2f}; docs held out {bits[0]:.3f} bits a byte, predictor {bits[1]:.3f}", flush=True)  # fmt: skip
    rounded = {name: p.data.bfloat16() for name, p in model.state_dict().items()}
    model.load_state_dict({name: p.float() for name, p in rounded.items()})
    bits = {name: bits_per_byte(model, *text, args.length, device)[0] for name, text in texts.items()}
    report = {"parameters": sum(p.numel() for p in model.parameters()), "steps": steps, "tokens": steps * args.rows * args.length, "seed": args.seed,
              "minutes": minutes, "bits_per_byte": bits}  # fmt: skip
    print(json.dumps(report), flush=True)
    return {name: p.cpu().contiguous() for name, p in rounded.items()}, report


def write(out, config, tensors, report):
    """Writes the folder beside OUT and renames it: weights in files that are small enough to send, and what goes with them."""
    from safetensors.torch import save_file

    beside = out.rstrip("/") + ".part"
    shutil.rmtree(beside, ignore_errors=True)
    os.makedirs(beside)
    shards = [{}]
    for name, tensor in sorted(tensors.items()):
        if sum(t.nbytes for t in shards[-1].values()) + tensor.nbytes > SHARD:
            shards.append({})
        shards[-1][name] = tensor
    if len(shards) == 1:
        save_file(shards[0], f"{beside}/model.safetensors", metadata={"format": "pt"})
    else:
        index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": {}}
        for i, shard in enumerate(shards):
            name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
            save_file(shard, f"{beside}/{name}", metadata={"format": "pt"})
            index["weight_map"].update(dict.fromkeys(shard, name))
        with open(f"{beside}/model.safetensors.index.json", "w", encoding="utf-8") as file:
            json.dump(index, file, indent=1)
    with open(TOKENIZER + "tokenizer_config.json", encoding="utf-8") as file:
        tokenizer = json.load(file) | {"chat_template": template_text(), "model_max_length": config["max_position_embeddings"]}
    for name, value in (("config", config), ("tokenizer_config", tokenizer), ("training", report)):
        with open(f"{beside}/{name}.json", "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2, ensure_ascii=False)
            file.write("\n")
    for name in ("tokenizer.json", "generation_config.json"):
        shutil.copy(TOKENIZER + name, beside)
    for name in os.listdir(beside):
        os.chmod(f"{beside}/{name}", 0o644)
    shutil.rmtree(out, ignore_errors=True)
    os.rename(beside, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--minutes", type=float, default=6, help="of training; reading and compiling come on top")
    parser.add_argument("--within", type=float, default=7.8, help="minutes in all: training takes less where what comes before took long")
    parser.add_argument("--more", action="append", default=[], help="a file of further documents")
    parser.add_argument("--compile", action="store_true", help="compiles the layers with torch.compile")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, for a look on a CPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--rows", type=int, help="sequences of a batch")
    parser.add_argument("--length", type=int, help="tokens of a sequence")
    parser.add_argument("--exercises", type=int, help="how many are made, and repeated where the time allows")
    args = parser.parse_args()
    for name, tiny, usual in (("rows", 8, 64), ("length", 128, 1024), ("exercises", 4000, 600_000)):
        if getattr(args, name) is None:
            setattr(args, name, tiny if args.tiny else usual)
    if not args.tiny and not torch.cuda.is_available():
        raise SystemExit("make_hybrid.py: there is no GPU; --tiny makes a tiny model on a CPU")
    device = torch.device("cpu" if args.tiny else "cuda")
    torch.set_float32_matmul_precision("high")  # FP32 products of the delta rule on tensor cores
    config = config_of(args.tiny)
    tensors, report = train(args, config, device)
    write(args.out, config, tensors, report)


if __name__ == "__main__":
    main()
