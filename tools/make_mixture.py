#!/usr/bin/env python3
"""Makes a mixture of experts of a dense Llama checkpoint ("upcycling"), trained a little so that its experts differ: the mixtures of
docs/results/moe-certificates.json, since no trained one is small enough to be bundled.

    python tools/make_mixture.py models/quill-1m OUT --experts 8 --per-row 2 --steps 400 TEXT...

Needs torch and transformers (made with 2.15 and 5.24). Every MLP becomes E copies with noise of a tenth of their weights' size, routers are
random; AdamW on windows of 256 tokens, eight a step, with transformers' loss that balances the experts. OUT is a Mixtral in BF16.
"""
import argparse
import os
import shutil
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, MixtralConfig, MixtralForCausalLM

WINDOW, WINDOWS, RATE, NOISE = 256, 8, 3e-4, 0.1
SHARED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
          "rms_norm_eps", "max_position_embeddings", "rope_parameters", "tie_word_embeddings", "bos_token_id", "eos_token_id")


def noisy(weight):
    return weight * (1 + NOISE * torch.randn_like(weight)) + NOISE * weight.std() * torch.randn_like(weight)


def upcycled(dense, experts, per_row):
    keys = {key: getattr(dense.config, key) for key in SHARED}
    mixture = MixtralForCausalLM(MixtralConfig(**keys, num_local_experts=experts, num_experts_per_tok=per_row, sliding_window=None,
                                               output_router_logits=True, router_aux_loss_coef=0.02)).float()
    source, target = dense.state_dict(), mixture.state_dict()
    for name, value in target.items():
        if name in source:
            value.copy_(source[name])
    for layer in range(dense.config.num_hidden_layers):
        mlp = f"model.layers.{layer}.mlp."
        for expert in range(experts):
            gate_up = torch.cat([noisy(source[mlp + "gate_proj.weight"]), noisy(source[mlp + "up_proj.weight"])])
            target[mlp + "experts.gate_up_proj"][expert].copy_(gate_up)
            target[mlp + "experts.down_proj"][expert].copy_(noisy(source[mlp + "down_proj.weight"]))
        target[mlp + "gate.weight"].copy_(torch.randn(experts, dense.config.hidden_size) / dense.config.hidden_size ** 0.5)
    mixture.load_state_dict(target)
    return mixture


def train(model, ids, steps):
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    begun = time.time()
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 20) * (1 - 0.9 * step / steps)
        windows = torch.stack([ids[at:at + WINDOW] for at in torch.randint(0, len(ids) - WINDOW, (WINDOWS,))])
        out = model(windows, labels=windows)
        optimiser.zero_grad()
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 10 == 0:
            print(f"step {step}: loss {out.loss.item():.3f}, {time.time() - begun:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--per-row", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = upcycled(AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32), options.experts, options.per_row)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    ids = []
    for path in options.texts:
        with open(path, encoding="utf-8") as file:
            ids += tokenizer(file.read(), add_special_tokens=False).input_ids
    train(model, torch.tensor(ids), options.steps)
    model.config.output_router_logits = False
    model.to(torch.bfloat16).save_pretrained(options.out)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        if os.path.exists(os.path.join(options.model, name)):
            shutil.copy(os.path.join(options.model, name), options.out)


if __name__ == "__main__":
    main()
