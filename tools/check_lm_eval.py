#!/usr/bin/env python3
"""lm-evaluation-harness (PyPI: lm-eval), unmodified, against a running `fidelio serve`: its local-completions and
local-chat-completions on tasks made of ours, question by question against `fidelio eval`.

    fidelio serve models/quill-26m --port 8000 &
    venv/bin/pip install 'lm-eval[api]==0.4.9.2' 'transformers<5'
    venv/bin/python tools/check_lm_eval.py http://127.0.0.1:8000 build/fidelio models/quill-26m [questions of each kind]

Versions that were used: lm-eval 0.4.9.2 with transformers 4.57.6 (it does not import beside 5), datasets 5.0.1, evaluate 0.4.6,
torch 2.15.0; lm-eval 0.4.13 with transformers 5.23.0, datasets 5.2.0, torch 2.15.0. The model needs a chat template.
Exits 1 where a choice, a greedy flag, an answer or a score differs. Log-likelihoods are sums of the server's FP32 logs, whose
weights are exact to 2^-22 (step/choice_arithmetic.h): they may differ from eval's by 1e-6 a token and a half unit in the last
place of each."""
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import urllib.request

os.environ["OPENAI_API_KEY"] = "none"
os.environ["HF_HUB_OFFLINE"] = "1"

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENS = 320

CHOICES = """task: ours_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/choices.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{choices.text}}}}"
doc_to_target: "{{{{choices.label.index(answerKey)}}}}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
ANSWERS = """task: ours_answers
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/answers.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["<|im_end|>"], max_gen_toks: {tokens}, temperature: 0, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""


def make_questions(folder, count):
    tasks = [json.loads(line) for line in open(f"{ROOT}/models/data/tasks.jsonl")]
    by_task = {}
    for item in tasks:
        by_task.setdefault(item["task"], []).append(item)
    picked = list(itertools.islice((x for group in zip(*by_task.values()) for x in group), count))
    with open(f"{folder}/answers.jsonl", "w") as file:
        for item in picked:
            file.write(json.dumps({k: item[k] for k in ("id", "task", "question", "answer")}) + "\n")
    with open(f"{folder}/choices.jsonl", "w") as file:  # ARC's flat form: three other questions' answers beside the right one
        for i, item in enumerate(picked):
            others = [o["answer"] for o in by_task[item["task"]] if o["answer"] != item["answer"]]
            text = list(dict.fromkeys(others[7 * i + 3 * j] if 7 * i + 3 * j < len(others) else others[j] for j in range(3)))
            text.insert(i % (len(text) + 1), item["answer"])
            labels = ["A", "B", "C", "D"][:len(text)]
            file.write(json.dumps({"id": item["id"], "question": item["question"], "choices": {"text": text, "label": labels},
                                   "answerKey": labels[text.index(item["answer"])]}) + "\n")
    for name, text in (("choices", CHOICES), ("answers", ANSWERS)):
        open(f"{folder}/{name}.yaml", "w").write(text.format(folder=folder, tokens=TOKENS))


def eval_results(program, model, folder, name, *more):
    cache = f"{folder}/{name}-eval.jsonl"
    subprocess.run([program, "eval", model, "--tasks", f"{folder}/{name}.jsonl", "--cache", cache, "--progress", "none", *more],
                   check=True, stdout=subprocess.DEVNULL)
    return {r["id"]: r for r in map(json.loads, open(cache)) if "settings" not in r}


def served_model(url):
    with urllib.request.urlopen(f"{url}/v1/models") as answer:
        return json.load(answer)["data"][0]["id"]


def harness(kind, url, task, folder, **more):
    import lm_eval
    import lm_eval.tasks
    tasks = os.path.dirname(lm_eval.tasks.__file__)  # where 0.4.9.2 wants every task to be, by the letters of its path
    manager = lm_eval.tasks.TaskManager(include_path=os.path.join(tasks, os.path.relpath(folder, tasks)), include_defaults=False)
    route = "chat/completions" if kind == "local-chat-completions" else "completions"
    arguments = {"model": served_model(url), "base_url": f"{url}/v1/{route}", "max_retries": 1, "num_concurrent": 4, "timeout": 600, **more}
    chat = kind == "local-chat-completions"
    if chat:
        arguments["eos_string"] = "<|im_end|>"
    return lm_eval.simple_evaluate(model=kind, model_args=arguments, tasks=[task], task_manager=manager, log_samples=True,
                                   apply_chat_template=chat, batch_size=1 if chat else 8, bootstrap_iters=0)


def check_choices(results, expected, task):
    worst = 0.0
    for sample in results["samples"][task]:
        mine = expected[sample["doc"]["id"]]
        for (found, greedy), known, known_greedy in zip((r[0] for r in sample["resps"]), mine["log_likelihoods"], mine["greedy"]):
            difference = abs(float(found) - known)
            assert difference <= 64 * (1e-6 + 2.0 ** -24 * (1 + abs(known))), (sample["doc"]["id"], found, known)
            assert (str(greedy) == "True") == known_greedy, (sample["doc"]["id"], greedy, known_greedy)
            worst = max(worst, difference)
        assert sample["acc"] == mine["correct"] and sample["acc_norm"] == mine["correct_normalised"], sample["doc"]["id"]
    for metric, key in (("acc,none", "correct"), ("acc_norm,none", "correct_normalised")):
        score = sum(m[key] for m in expected.values()) / len(expected)
        assert math.isclose(results["results"][task][metric], score, abs_tol=1e-12), (metric, results["results"][task][metric], score)
    return score, worst


def main(url, program, model, count):
    import lm_eval
    import lm_eval.tasks
    with tempfile.TemporaryDirectory() as folder:
        make_questions(folder, count)
        expected = eval_results(program, model, folder, "choices")
        for tokenized in (True, False):  # prompts as ids, as text
            results = harness("local-completions", url, "ours_choices", folder, tokenizer_backend="remote", tokenized_requests=tokenized)
            score, worst = check_choices(results, expected, "ours_choices")
            print(f"local-completions, {'ids' if tokenized else 'text'}: {len(expected)} questions, acc_norm {score:.4f} as `fidelio eval` has it; "
                  f"log-likelihoods within {worst:.1e}")
        expected = eval_results(program, model, folder, "answers", "--max-tokens", str(TOKENS))
        results = harness("local-chat-completions", url, "ours_answers", folder)
        for sample in results["samples"]["ours_answers"]:
            mine = expected[sample["doc"]["id"]]
            assert bool(sample["exact_match"]) == mine["correct"], (sample["doc"], sample["resps"], mine)
        score = sum(m["correct"] for m in expected.values()) / len(expected)
        assert math.isclose(results["results"]["ours_answers"]["exact_match,none"], score, abs_tol=1e-12)
        print(f"local-chat-completions: {len(expected)} answers, exact_match {score:.4f} as `fidelio eval` has it")
        print(f"lm-eval {lm_eval.__version__}: the harness and the server understand each other")


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 60)
