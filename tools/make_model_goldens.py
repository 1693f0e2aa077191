#!/usr/bin/env python3
"""Writes tests/models/NAME/ (tiny random checkpoints) and tests/golden/NAME.json + NAME.logits (what transformers computes).

Needs torch, transformers, safetensors (made with transformers 5.23.0, torch 2.15 on CPU). Run from the repository root:
    python tools/make_model_goldens.py [NAME...]
Every tiny model is written first and then loaded from its folder by transformers in FP32 with eager attention, so the golden
is transformers' reading of exactly the files the tests read. Per model:
    NAME.json    ids; greedy: 16 ids that follow, by generate() with its KV cache; gap: at each of those steps the distance of
                 the two largest logits; norm: Frobenius norm of the logits
    NAME.logits  FP32 little-endian (ids, columns): the logits of every position; `columns` of the json lists the vocabulary
                 columns kept, absent = all of them
The two bundled models (models/quill-*) get the same from prompts in words, 64 columns of the logits only, and `losses` of the
first three windows of docs-heldout.txt.
"""
import json
import os
import shutil
import sys
import warnings

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

transformers.logging.set_verbosity_error()
warnings.filterwarnings("ignore")
torch.set_num_threads(1)

TOKENS, GREEDY, COLUMNS = 48, 16, 64
CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

# name -> (dtype of the file, family, keys). Sizes are small and awkward on purpose: d = 48 and f = 80 are multiples of 16 but
# not of 32 or 64, so that every kernel meets its ragged end.
BASE = dict(vocab_size=128, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=96, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, hidden_act="silu",
            bos_token_id=1, eos_token_id=2)
MODELS = {
    # Multi-head attention, as Llama 2.
    "llama2": ("bfloat16", "llama", dict(num_key_value_heads=4)),
    # Tied head, rope stretched: position 48 is three times the original context, so all three bands of the ramp matter.
    "llama32": ("bfloat16", "llama", dict(tie_word_embeddings=True, head_dim=16, rope_theta=500000.0, rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16))),
    # The window of 20 is left behind early and is no multiple of the cache's page.
    "mistral": ("float16", "mistral", dict(num_key_value_heads=1, sliding_window=20)),
    "qwen2": ("float32", "qwen2", dict(hidden_size=32, intermediate_size=72, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True)),
    # head_dim * heads = 64 > hidden_size; norms on q and k.
    "qwen3": ("bfloat16", "qwen3", dict(head_dim=16, rms_norm_eps=1e-6, rope_theta=1e6)),
    "linear_rope": ("bfloat16", "llama", dict(rope_scaling=dict(type="linear", factor=4.0), attention_bias=True, mlp_bias=True)),
    "yarn": ("bfloat16", "llama", dict(head_dim=24, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=24))),
    # config.json as transformers 5 itself writes it: dtype, rope_parameters, layer_types.
    "keys5": ("bfloat16", "qwen3", dict(head_dim=16, tie_word_embeddings=True, num_hidden_layers=1, rope_parameters=dict(
        rope_type="llama3", rope_theta=250000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=32))),
}
PROMPTS = {
    "quill-26m": ["The quick brown fox", "In 1998, the city of", "#include <stdio.h>\n", "A list of the rivers of", "12 + 30 =", "The", None,
                  "To install the package, run", "Für Élise — naïve café", "She said: \""],
    "quill-1m": ["The quick brown fox", "In 1998, the city of", "The river is", "def main():", "The name of the file", "When the option is",
                 "It is", "To install the package", "one two three", "naïve café"],
}
QUESTION = "What is 348 + 5127?"  # in place of None: through the chat template


def write_tiny(folder, name, dtype, family, keys):
    torch.manual_seed(sum(map(ord, name)))
    text = dict(architectures=[CLASSES[family]], model_type=family, torch_dtype=dtype, **BASE)
    text.update(keys)
    if name == "keys5":
        text.pop("rope_theta")
    config = AutoConfig.for_model(**json.loads(json.dumps(text)))
    model = AutoModelForCausalLM.from_config(config).float()
    # Linears keep their input's size; a wide embedding and norms and biases away from 1 and 0, so that leaving one out shows.
    tensors = {}
    for key, value in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if key.endswith("norm.weight"):
            value = 1 + 0.3 * torch.randn(value.shape)
        elif key.endswith(".bias"):
            value = 0.3 * torch.randn(value.shape)
        else:
            value = torch.randn(value.shape) * 1.5 / value.shape[1] ** 0.5
        tensors[key] = value.to(getattr(torch, dtype)).contiguous()
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    if name == "keys5":
        config.architectures, config.dtype = [CLASSES[family]], getattr(torch, dtype)
        config.save_pretrained(folder)
    else:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(text, file, indent=1)
            file.write("\n")


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.no_grad()
def continuation(model, ids, tokens, stop):
    options = dict(eos_token_id=stop) if stop else dict(eos_token_id=None)
    prompt = torch.tensor([ids])
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False, temperature=None, top_p=None,
                         top_k=None, pad_token_id=0, output_logits=True, return_dict_in_generate=True, **options)
    gaps = []
    for logits in out.logits:
        best = logits[0].topk(2).values
        gaps.append(round(float(best[0] - best[1]), 6))
    return out.sequences[0, len(ids):].tolist(), gaps


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


@torch.no_grad()
def losses_of(model, ids, context):
    """Summed negative log-likelihood of windows of `context` tokens side by side, the first token of each not scored."""
    sums = []
    for begin in range(0, len(ids), context):
        window = torch.tensor(ids[begin:begin + context])
        log_p = model(window[None], use_cache=False).logits[0, :-1].double().log_softmax(-1)
        sums.append(-float(log_p.gather(1, window[1:, None]).sum()))
    return sums


def write_golden(name, golden, logits):
    golden = dict(golden, norm=float(logits.double().norm()))
    columns = golden.get("columns")
    kept = logits if columns is None else logits[:, columns]
    kept.contiguous().numpy().astype("<f4").tofile(f"tests/golden/{name}.logits")
    with open(f"tests/golden/{name}.json", "w", encoding="utf-8") as file:
        json.dump(golden, file, separators=(",", ":"))
        file.write("\n")


def tiny(name):
    folder = f"tests/models/{name}"
    write_tiny(folder, name, *MODELS[name])
    model = load(folder)
    ids = torch.randint(3, BASE["vocab_size"], (TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()
    logits = logits_of(model, ids)
    greedy, gaps = continuation(model, ids, GREEDY, None)
    write_golden(name, dict(ids=ids, greedy=greedy, gap=gaps), logits)
    print(f"{name}: {os.path.getsize(folder + '/model.safetensors')} bytes, logits sd {logits.std():.2f}, smallest gap {min(gaps)}")


def bundled(name):
    folder = f"models/{name}"
    model, tokenizer = load(folder), AutoTokenizer.from_pretrained(folder)
    stop = model.generation_config.eos_token_id
    stop = stop if isinstance(stop, list) else [stop]
    runs = []
    for prompt in PROMPTS[name]:
        if prompt is None:
            text = tokenizer.apply_chat_template([dict(role="user", content=QUESTION)], tokenize=False, add_generation_prompt=True)
            run = dict(chat=QUESTION, ids=tokenizer.encode(text, add_special_tokens=False))
        else:
            run = dict(prompt=prompt, ids=tokenizer.encode(prompt))
        run["greedy"], run["gap"] = continuation(model, run["ids"], 32, stop)
        runs.append(run)
    with open("models/data/docs-heldout.txt", encoding="utf-8") as file:
        text = tokenizer.encode(file.read(), add_special_tokens=False)
    ids, context = text[1000:1024], model.config.max_position_embeddings
    losses = losses_of(model, text[:3 * context], context)
    columns = sorted(torch.randperm(model.config.vocab_size, generator=torch.Generator().manual_seed(2))[:COLUMNS].tolist())
    write_golden(name, dict(ids=ids, columns=columns, runs=runs, losses=losses), logits_of(model, ids))
    print(f"{name}: smallest gap {min(min(r['gap']) for r in runs)}")


if __name__ == "__main__":
    names = sys.argv[1:]
    os.makedirs("tests/golden", exist_ok=True)
    for name in names or [*MODELS, *PROMPTS]:
        tiny(name) if name in MODELS else bundled(name)
