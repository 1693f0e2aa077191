#!/usr/bin/env python3
"""Runs the study of tasks: how compressed models answer questions, beside the model they were made from.

    tools/study_tasks.py models/quill-26m -o build/study --processes 16 --minutes 9
    tools/study_tasks.py models/quill-26m -o build/study --only report --copy results

Runs `fidelio` as many small jobs, so many at a time; what is finished is not done again, answers are kept one by one, and
a search goes on from its journal, so the same command goes on after --minutes (exit code 3: there is more to do) or a
kill. Needs Python's standard library alone. Stages:

  checkpoints  uniform 4, 3, 2 bits; DL: the smallest plan of a certified EAR; TL: the smallest that keeps the accuracy
               on questions that are not asked elsewhere
  fidelity     KL and EAR of each, on documentation and on task text
  greedy       FP32 against another program's texts; every model in its serving mode
  sampled      every model, so many seeds
  noise        recovery against KL under noise in the weights
  divergence   token by token: DL, TL and uniform 4 bits against the original
  throughput   tokens a second by batch, and the whole suite, with 2 threads and nothing else running
  report       tables (OUT/results.md), pages (OUT/pages), CSV and JSON from what there is
"""
import argparse
import csv
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time

STAGES = ["checkpoints", "fidelity", "greedy", "sampled", "noise", "divergence", "throughput", "report"]
UNIFORM = ["int4g128z", "int3g128z", "int2g128z"]
LEVELS = [0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.28]  # KL doubles from level to level
BATCHES = [(1, 3), (8, 10), (32, 30), (64, 30), (128, 30)]  # answers side by side, questions of each task

root = os.path.relpath(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", help="the original: a folder")
parser.add_argument("-o", "--out", required=True, help="folder of the study")
parser.add_argument("--only", action="append", choices=STAGES, help="only this stage; may be repeated")
parser.add_argument("--fidelio", default=os.path.join(root, "build", "fidelio"), help="the program")
parser.add_argument("--library-path", help="LD_LIBRARY_PATH of fidelio")
parser.add_argument("--processes", type=int, default=os.cpu_count(), help="jobs at a time")
parser.add_argument("--threads", type=int, default=1, help="threads of each")
parser.add_argument("--minutes", type=float, default=1e9, help="stop in time; the same command goes on")
parser.add_argument("--tasks", default=os.path.join(root, "models/data/tasks.jsonl"))
parser.add_argument("--against", default=os.path.join(root, "models/data/tasks-greedy.jsonl"), help="texts of another program")
parser.add_argument("--tl-texts", default=os.path.join(root, "models/data/tasks-calibration.jsonl"),
                    help='conversations {"text"} whose questions calibrate TL')
parser.add_argument("--calibration", default=os.path.join(root, "models/data/docs-calibration.txt"))
parser.add_argument("--heldout", default=os.path.join(root, "models/data/docs-heldout.txt"))
parser.add_argument("--limit", type=int, default=0, help="questions of each task; 0 = all")
parser.add_argument("--noise-limit", type=int, help="the same in the noise study (default: --limit)")
parser.add_argument("--windows", type=int, default=40, help="windows of 512 tokens on which KL is measured")
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--ear", type=float, default=0.99, help="what DL certifies")
parser.add_argument("--recovery", type=float, default=0.99, help="what TL aims at")
parser.add_argument("--tl-bits", type=float, default=3, help="bits of the plan at which TL counts the loss")
parser.add_argument("--dl", help="a DL checkpoint that is already there")
parser.add_argument("--tl", help="a TL checkpoint that is already there")
parser.add_argument("--copy", help="copy tables, pages, CSV, JSON and answers into this folder at the end")
parser.add_argument("--list", action="store_true", help="say what is left to do, and stop")
args = parser.parse_args()

stages = args.only or STAGES
begin = time.time()
model = os.path.normpath(args.model)
base = os.path.basename(model)


def out(*parts):
    path = os.path.join(args.out, *parts)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def folder(*parts):
    path = os.path.join(args.out, *parts)
    os.makedirs(path, exist_ok=True)
    return path


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write(path, text):
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".part", path)


# --- Jobs.
class Job:
    def __init__(self, stage, name, argv, after=(), threads=None, weight=1.0, alone=False, makes=None):
        self.stage, self.name, self.argv, self.after = stage, name, argv, list(after)
        self.threads = min(threads or args.threads, args.processes * args.threads)
        self.weight = weight  # long ones first
        self.alone = alone
        self.makes = makes  # a folder that appears complete or not at all
        self.mark = out("done", name)
        self.log = out("logs", name + ".txt")

    def command(self):
        return [args.fidelio, *self.argv, "--threads", str(self.threads)]

    # What was asked, without the number of threads, which changes no result.
    def key(self):
        return json.dumps(self.command()[1:-2])

    def done(self):
        if not os.path.exists(self.mark):
            return self.makes is not None and os.path.isdir(self.makes)
        with open(self.mark, encoding="utf-8") as file:
            same = file.read() == self.key()
        if not same and self.makes is not None and os.path.isdir(self.makes):
            sys.exit(f"{self.makes} was made with other options: remove it or name another folder with -o")
        return same


jobs = {}
failed = set()


def job(stage, name, argv, **more):
    jobs[name] = Job(stage, name, argv, **more)
    return name


environment = dict(os.environ)
if args.library_path:
    environment["LD_LIBRARY_PATH"] = args.library_path


def run(wanted):
    """Runs the jobs; False if time ran out. A job that fails holds up what needs it and nothing else."""
    left = {name for name in wanted if not wanted[name].done()}
    room = args.processes * args.threads
    free, running = room, {}
    last = 0

    def end(name):
        nonlocal free
        process, _, log = running.pop(name)
        free += jobs[name].threads
        log.close()
        return process.returncode

    def stop():
        for process, _, _ in running.values():
            process.send_signal(signal.SIGTERM)
        for name in list(running):
            running[name][0].wait()
            end(name)

    try:
        while left:
            if time.time() - begin > args.minutes * 60:
                stop()
                print(f"time is over with {len(left)} of {len(wanted)} jobs to do: {', '.join(sorted(left))}", flush=True)
                return False
            ready = [n for n in left if n not in running and not any(a in left for a in jobs[n].after)]
            shared = [n for n in ready if not jobs[n].alone]
            if not shared and all(jobs[n].alone for n in left) and not running:
                shared = ready[:1]
            for name in sorted(shared, key=lambda n: -jobs[n].weight):
                if jobs[name].threads > free:
                    if jobs[name].weight >= 100:
                        break  # small ones would never leave room for it
                    continue
                log = open(jobs[name].log, "w", encoding="utf-8")
                process = subprocess.Popen(jobs[name].command(), stdout=log, stderr=subprocess.STDOUT, env=environment,
                                           stdin=subprocess.DEVNULL)
                running[name] = process, time.time(), log
                free -= jobs[name].threads
            time.sleep(0.2)
            for name in [n for n, r in running.items() if r[0].poll() is not None]:
                seconds = time.time() - running[name][1]
                code = end(name)
                left.discard(name)
                if code != 0:
                    with open(jobs[name].log, encoding="utf-8", errors="replace") as file:
                        print(f"{name} failed with {code}:\n  {' '.join(jobs[name].command())}\n{file.read()[-1000:]}", flush=True)
                    failed.add(name)
                    while needing := {n for n in left if any(a in failed for a in jobs[n].after)}:
                        failed.update(needing)
                        left -= needing
                    continue
                write(jobs[name].mark, jobs[name].key())
                print(f"{time.time() - begin:6.0f} s  {name} ({seconds:.0f} s)", flush=True)
            if time.time() - last > 60:
                last = time.time()
                print(f"{last - begin:6.0f} s  {len(left)} to do, running: {', '.join(sorted(running))}", flush=True)
    except BaseException:  # an interrupt: nothing is left running
        stop()
        raise
    return True


# --- Inputs made from the data.
def conversations():
    user, assistant = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    with open(args.tl_texts, encoding="utf-8") as file:
        for number, line in enumerate(file):
            question, answer = json.loads(line)["text"][len(user):].split(assistant)
            yield number, question, answer.split("<|im_end|>")[0].split("</think>")[-1].strip()


def make_inputs():
    tl = out("inputs", "tl-questions.jsonl")
    if not os.path.exists(tl):
        write(tl, "".join(json.dumps({"id": str(n), "task": "calibration", "question": q, "answer": a}) + "\n"
                          for n, q, a in conversations()))
    # Every fifteenth question with the other program's answer: what a served model reads and writes.
    text = out("inputs", "task-text.txt")
    if not os.path.exists(text):
        with open(args.against, encoding="utf-8") as file:
            answers = {a["id"]: a["text"] for a in map(json.loads, file)}
        with open(args.tasks, encoding="utf-8") as file:
            questions = [json.loads(line) for line in file][::15]
        write(text, "".join(f"<|im_start|>user\n{q['question']}<|im_end|>\n<|im_start|>assistant\n{answers[q['id']]}<|im_end|>\n"
                            for q in questions))
    # Beginnings of paragraphs, to be continued as plain text.
    prompts = out("inputs", "prompts.txt")
    if not os.path.exists(prompts):
        with open(args.heldout, encoding="utf-8") as file:
            lines = [line.strip() for line in file if len(line.strip()) > 60 and line[0].isupper()]
        write(prompts, "".join(line[:60].rsplit(" ", 1)[0] + "\n" for line in lines[::max(1, len(lines) // 20)][:20]))
    return tl, text, prompts


tl_questions, task_text, prompts = make_inputs()
with open(args.tasks, encoding="utf-8") as file:
    tasks = list(dict.fromkeys(json.loads(line)["task"] for line in file))
limit = ["--limit", str(args.limit)] if args.limit else []
noise_limit = args.limit if args.noise_limit is None else args.noise_limit
asking = ["--tasks", args.tasks, "--batch", str(args.batch), *limit]
wide = max(args.threads, args.processes * args.threads // 2)

# --- Checkpoints.
given = [os.path.normpath(path or out("models", name)) for name, path in (("dl", args.dl), ("tl", args.tl))]
dl, tl = map(os.path.basename, given)
folders = {base: model, dl: given[0], tl: given[1], **{name: out("models", name) for name in UNIFORM}}
models = [base, dl, tl, *UNIFORM]  # the order of every table
if len(set(models)) < len(models):
    sys.exit(f"folders of models must have different last names: {', '.join(models)}")
made = {base: []}

for name in UNIFORM:
    made[name] = [job("checkpoints", "make-" + name,
                      ["quantize", model, "--format", name, "--keep-embedding", "--calibration", args.calibration, "-o", folders[name]],
                      threads=max(args.threads, 2), weight=100, makes=folders[name])]


def compress(name, *target):
    return ["compress", model, *target, "--calibration", args.calibration, "--text", args.heldout, "-o", folders[name],
            "--report", out("pages", f"plan-{name}.html"), "--json", out("json", f"compress-{name}.json")]


made[dl] = [] if args.dl else [
    job("checkpoints", "make-" + dl, compress(dl, "--ear", str(args.ear)), threads=wide, weight=200,
        makes=folders[dl])]


def fidelity(name, kind, text):
    return job("fidelity", f"fidelity-{name}-{kind}",
               ["eval", folders[name], "--reference", model, "--text", text, "--context", "512", "--windows", str(args.windows),
                "--json", out("json", f"fidelity-{name}-{kind}.json")], after=made[name], weight=2)


made[tl] = [] if args.tl else [
    job("checkpoints", "make-" + tl,
        compress(tl, "--tasks", tl_questions, "--batch", str(args.batch), "--accuracy-drop", f"{1 - args.recovery:.6g}",
                 "--calibration-bits", str(args.tl_bits), *(["--limit", str(10 * args.limit)] if limit else [])),
        threads=wide, weight=190, makes=folders[tl])]

for name in models:
    for kind, text in (("docs", args.heldout), ("tasks", task_text)):
        fidelity(name, kind, text)

# --- Answers: a job is one model, one run and a part of the tasks, with a file of answers of its own; `merge` joins them.
PARTS = 2 if len(tasks) > 1 else 1
parts = [tasks[i::PARTS] for i in range(PARTS)]
answer_jobs = {}  # file of answers -> its jobs


def ask(stage, name, file, options, weight):
    answer_jobs[file] = []
    for number, some in enumerate(parts):
        part = out("parts", os.path.relpath(file, args.out).replace(os.sep, "-").replace(".jsonl", f".{number}"))
        cache = part + ".jsonl" if "--recommended" not in options else part + f"-seed{options[-1]}.jsonl"
        answer_jobs[file].append((job(
            stage, f"{stage}-{os.path.basename(file)[:-6]}-{number}" if "f32" not in options else f"f32-{number}",
            ["eval", folders[name], *asking, *[x for t in some for x in ("--task", t)], *options, "--cache", part + ".jsonl"],
            after=made[name], weight=weight), cache))


ask("greedy", base, out("answers-f32", base + ".jsonl"), ["--activations", "f32"], 20)
for name in models:
    slow = 40 if name == "int2g128z" else 10  # it hardly ever ends
    ask("greedy", name, out("answers", name + ".jsonl"), [], slow)
    for seed in range(args.seeds):
        ask("sampled", name, out("answers", f"{name}-seed{seed}.jsonl"), ["--recommended", "--seed", str(seed)], slow)


# The files of a run differ in which questions they hold and in nothing else: one settings line, then the answers.
def merge(file):
    lines = []
    for name, part in answer_jobs[file]:
        if not jobs[name].done():
            return False
        with open(part, encoding="utf-8") as source:
            settings, *answers = source.read().splitlines()
        if lines and lines[0] != settings:
            sys.exit(f"{part} was made with other settings than its other parts")
        lines = lines or [settings]
        lines += answers
    write(file, "\n".join(lines) + "\n")
    return True


# --- Noise.
def noise(levels, text, windows, *more):
    few = ["--limit", str(noise_limit)] if noise_limit else []
    return ["noise", model, "--text", text, "--tasks", args.tasks, *few, "--batch", str(args.batch), "--windows", str(windows),
            "--levels", ",".join(map(str, levels)), "--cache", folder("noise"), *more]


# First the answers, level by level; then KL, with the answers from the cache.
first = job("noise", "noise-0", noise(LEVELS[:1], args.heldout, 1), weight=120)  # and without any
rest = [job("noise", f"noise-{level}", noise([level], args.heldout, 1), after=[first], weight=30 + 100 * level)
        for level in LEVELS[1:]]
for kind, text in (("docs", args.heldout), ("tasks", task_text)):
    job("noise", "noise-" + kind,
        noise(LEVELS, text, args.windows, "--report", out("pages", f"noise-{kind}.html"), "--csv", out("csv", f"noise-{kind}.csv"),
              "--json", out("json", f"noise-{kind}.json")), after=[first, *rest], threads=wide, weight=50)

# --- Divergence.
for name in (dl, tl, "int4g128z"):
    for kind, more in (("tasks", ["--prompts", args.tasks, "--limit", "100"]),
                       ("docs", ["--prompts", prompts, "--plain", "--max-tokens", "400"])):
        job("divergence", f"compare-{name}-{kind}",
            ["compare", model, folders[name], *more, "--report", out("pages", f"compare-{name}-{kind}.html"),
             "--csv", out("csv", f"compare-{name}-{kind}.csv"), "--json", out("json", f"compare-{name}-{kind}.json")],
            after=made[name], weight=5)

# --- Throughput.
for name in (base, dl):
    for batch, count in BATCHES:
        count = min(count, args.limit or count)
        job("throughput", f"speed-{name}-{batch}",
            ["eval", folders[name], "--tasks", args.tasks, "--limit", str(count), "--batch", str(batch),
             "--json", out("json", f"speed-{name}-{batch}.json")], after=made[name], threads=2, alone=True)
    job("throughput", f"suite-{name}",
        ["eval", folders[name], *asking, "--json", out("json", f"suite-{name}.json")], after=made[name], threads=2, alone=True)


# --- Report.
def markdown_rows(rows):
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]]) + "\n"


def markdown_csv(path):
    with open(path, encoding="utf-8", newline="") as file:
        return markdown_rows(list(csv.reader(file)))


def with_interval(e, digits):
    if not e or e["value"] is None:
        return "–"
    low, high = e["ci95"]
    return f"{e['value']:.{digits}f}" + ("" if low is None else f" [{low:.{digits}f}, {high:.{digits}f}]")


def fidelio(name, argv):
    """At once: what is computed from answers that are there. Returns what it printed."""
    done = subprocess.run([args.fidelio, *argv, "--threads", str(args.threads)], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{name} failed: fidelio {' '.join(argv)}\n{done.stderr[-2000:]}")
    write(out("logs", name + ".txt"), done.stdout)
    return done.stdout


def text_section(texts):
    lines = []
    accuracy = {}
    for label, answers, more in (("FP32 activations", "answers-f32", ["--activations", "f32"]), ("A16, as served", "answers", [])):
        file = out(answers, base + ".jsonl")
        if not texts.get(file):
            continue
        target = out("json", answers + ".json")
        fidelio(answers, ["eval", model, *asking, *more, "--cache", file, "--against", args.against, "--json", target])
        report = read_json(target)
        accuracy[label] = {t["task"]: t["accuracy"]["value"] for t in report["runs"][0]["tasks"]}
        against = report["against"]
        differences = against["differences"]
        lines.append(f"{label}: the same text for {against['compared'] - len(differences)} of {against['compared']} "
                     f"({with_interval(against['equal'], 4)}).\n")
        if differences:
            lines.append(markdown_rows([["question", "position", "token", "other token", "logit", "other's"]] + [
                [d["id"], str(d["position"]), d["token"], d["other_token"],
                 "–" if d["logit"] is None else f"{d['logit']:.5f}", f"{d['other_logit']:.5f}"] for d in differences]))
    if len(accuracy) == 2:
        rows = [["activations", *tasks]]
        rows += [[label, *[f"{of[t]:.3f}" for t in tasks]] for label, of in accuracy.items()]
        largest = max(abs(a - b) for a, b in zip(*[[of[t] for t in tasks] for of in accuracy.values()]))
        lines += [markdown_rows(rows), f"Largest difference of a task: {100 * largest:.2f} points.\n"]
    return ["### Greedy texts beside another program's\n", *lines] if lines else []


def fidelity_section():
    rows = [["model", "file bits", "docs KL", "docs EAR", "tasks KL", "tasks EAR"]]
    for name in models:
        cells = [name, bits.get(name, "–")]
        for kind in ("docs", "tasks"):
            if not jobs[f"fidelity-{name}-{kind}"].done():
                cells += ["–", "–"]
                continue
            report = read_json(out("json", f"fidelity-{name}-{kind}.json"))
            cells += [with_interval(report["kl"], 6), with_interval(report["ear"], 5)]
        if any(cell != "–" for cell in cells[2:]):
            rows.append(cells)
    lines = ["### The models\n", markdown_rows(rows)] if len(rows) > 1 else []
    for name in (dl, tl):
        path = out("json", f"compress-{name}.json")
        if os.path.exists(path):
            c = read_json(path)
            certificate = c["certificate"]
            lines.append(f"{name}: {c['bits_per_parameter']:.3f} bits a parameter (whole file), certified EAR "
                         f"{with_interval(certificate['ear'], 5)}, KL {with_interval(certificate['kl'], 6)} on "
                         f"{certificate['tokens']} tokens the search has not seen.\n")
            if "tasks" in certificate:
                of = certificate["tasks"]
                point = of["calibration"]
                asked = of["questions"]
                lines.append(f"{name}: {asked['calibration']} questions of calibration, at {point['bits']:.3f} bits KL on their text "
                             f"{with_interval(point['kl'], 5)}, recovery {with_interval(point['recovery'], 4)}, loss a nat "
                             f"{with_interval(point['alpha'], 2)}; allowed KL {of['kl_allowed']:.5f}; on {asked['check']} other "
                             f"questions the plan recovers {with_interval(of['recovery'], 4)}, predicted "
                             f"{with_interval(of['predicted_recovery'], 4)}.\n")
    return lines


bits = {}


def recovery_section(texts, kind, options):
    suffixes = [""] if kind == "greedy" else [f"-seed{s}" for s in range(args.seeds)]
    complete = [n for n in models if all(texts.get(out("answers", f"{n}{s}.jsonl")) for s in suffixes)]
    if base not in complete or len(complete) < 2:
        return []
    page, tables = out("pages", f"recovery-{kind}.html"), folder("csv", "recovery-" + kind)
    target = out("json", f"recovery-{kind}.json")
    for old in glob.glob(os.path.join(tables, "*.csv")):
        os.remove(old)
    text = fidelio("recovery-" + kind, ["recovery", *[folders[n] for n in complete], *asking, *options, "--cache", folder("answers"),
                                        "--report", page, "--csv", tables])
    fidelio("recovery-" + kind + "-json", ["recovery", *[folders[n] for n in complete], *asking, *options, "--cache",
                                           folder("answers"), "--json", target])
    for row in read_json(target)["models"]:
        bits[row["model"]] = f"{row['bits']:.2f}"
    lines = [f"### Recovery, {kind}\n"]
    paths = sorted(glob.glob(os.path.join(tables, "*.csv")), key=lambda p: int(os.path.basename(p).split("-")[0]))
    for path in paths if kind == "sampled" else paths[:2]:  # thinking is compared over seeds
        lines += ["**" + os.path.basename(path)[:-4].split("-", 1)[1].replace("-", " ") + "**\n", markdown_csv(path)]
    lines += ["- " + line for line in text.splitlines() if "within sampling variance" in line] + [""]
    return lines


def noise_section():
    lines = []
    for kind in ("docs", "tasks"):
        if not jobs["noise-" + kind].done():
            continue
        lines += [f"### Noise, KL on {kind}\n", markdown_csv(out("csv", f"noise-{kind}.csv"))]
        with open(jobs["noise-" + kind].log, encoding="utf-8") as file:
            lines += ["- " + l.strip() for l in file if " where KL <= " in l or "cannot be told" in l] + [""]
    return lines


def divergence_section():
    rows = [["model", "prompts", "tokens", "divergent", "agreement [95%]"]]
    for name in (dl, tl, "int4g128z"):
        for kind in ("tasks", "docs"):
            if jobs[f"compare-{name}-{kind}"].done():
                r = read_json(out("json", f"compare-{name}-{kind}.json"))
                rows.append([name, f"{len(r['prompts'])} of {kind}", str(r["tokens"]), str(r["divergent"]),
                             with_interval(r["agreement"], 4)])
    return ["### Token by token\n", markdown_rows(rows)] if len(rows) > 1 else []


def throughput_section():
    rows = [["model", *[f"batch {b}" for b, _ in BATCHES], "whole suite"]]
    for name in (base, dl):
        cells = [name]
        for key in [f"speed-{name}-{b}" for b, _ in BATCHES] + [f"suite-{name}"]:
            if not jobs[key].done():
                cells.append("–")
                continue
            t = read_json(out("json", key + ".json"))["runs"][0]["timings"]
            cells.append(f"{t['tokens_per_second']:.0f}" +
                         (f" ({t['seconds']:.0f} s for {t['questions_asked']})" if key.startswith("suite") else ""))
        rows.append(cells)
    if all(cell == "–" for row in rows[1:] for cell in row[1:]):
        return []
    return ["### Tokens a second by batch, 2 threads\n", markdown_rows(rows)]


def report():
    texts = {file: merge(file) for file in answer_jobs}
    greedy = recovery_section(texts, "greedy", ["--greedy"])
    sampled = recovery_section(texts, "sampled", ["--seeds", str(args.seeds)])
    lines = [f"## Tasks, {base}\n"]
    for section in (text_section(texts), fidelity_section(), greedy, sampled, noise_section(), divergence_section(),
                    throughput_section()):
        lines += section
    text = "\n".join(lines)
    write(out("results.md"), text)
    print(text)


wanted = {name: j for name, j in jobs.items() if j.stage in stages}
# What a stage needs of another is made with it.
while more := {a: jobs[a] for j in wanted.values() for a in j.after if a not in wanted}:
    wanted.update(more)
if args.list:
    todo = [name for name in wanted if not wanted[name].done()]
    sys.exit(f"{len(todo)} of {len(wanted)} jobs to do: {', '.join(todo)}")
complete = run(wanted)
if "report" in stages:
    report()
if args.copy:
    for name in ("results.md", "pages", "csv", "json", "answers", "answers-f32", "noise", "logs"):
        source, target = os.path.join(args.out, name), os.path.join(args.copy, name)
        if os.path.isdir(source):
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif os.path.exists(source):
            os.makedirs(args.copy, exist_ok=True)
            shutil.copy(source, target)
if failed:
    print(f"failed, or needing what failed: {', '.join(sorted(failed))}")
print(f"{time.time() - begin:.0f} s; {'run the same command to go on' if not complete else 'incomplete' if failed else 'complete'}")
sys.exit(3 if not complete else 1 if failed else 0)
