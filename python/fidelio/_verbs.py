"""The verbs of the program as functions. tools/make_python_verbs.py writes this file from the program's own help."""
from typing import Any, Optional, Sequence, Union

from ._options import PathLike
from ._program import run_verb
from ._report import Report


def certify(model: PathLike, reference: PathLike, *, text: Optional[Union[PathLike, Sequence[PathLike]]] = None,
            ear: Optional[float] = None, kl: Optional[float] = None, context: Optional[int] = None,
            draft: Optional[PathLike] = None, drafts: Optional[int] = None, fixed_drafts: bool = False,
            top1: Optional[float] = None, answers: Optional[int] = None, card: Optional[PathLike] = None,
            card_block: Optional[PathLike] = None, device: Optional[PathLike] = None, threads: Optional[int] = None,
            isa: Optional[PathLike] = None, report: Optional[PathLike] = None, progress: Optional[bool] = None,
            **options: Any) -> Report:
    """Measure a model's certificate again, or on text of your own, or certify what another program quantised.

    The options are those of `fidelio certify --help-all`:

    reference: The original model
    text: Measure on a text of your own instead: DIR, FILE or JSONL, each with :domain or without; may be repeated.
        If the certificate's text has moved, give its new place; it is recognised by its SHA-256. The word tools is
        the calls of tools that come along, own the model's own answers that lie beside it
    ear: Of a file without a certificate: the overlap that its lower end must reach (in [0 - 1])
    kl: Likewise: the KL divergence, in nats a token, that its upper end must not pass
    context: Likewise: length of the windows of text (default: 512, or the model's context if that is shorter)
    draft: Speculative decoding, which changes no answer: off (the default), auto (what `fidelio draft` chose),
        lookup (n-grams of the text), mtp (the model's own block that predicts a token more), 4 (only the top 4 bits
        of the weights; 4:a8 with 8-bit activations), or the folder or .gguf file of a smaller copy of the model;
        joined by +
    drafts: Tokens guessed at once, at most (default: 8) (in [1 - 64])
    fixed_drafts: Always guess that many, instead of as many as pay
    top1: Likewise: the share of greedy tokens that are the original's, as its lower end (in [0 - 1])
    answers: Greedy answers that are compared with the original's, word for word (default: as many as the
        certificate has)
    card: Write the model's card with what is measured to this Markdown file, which must not exist
    card_block: Write a few lines with what is measured to this Markdown file, for a model card of your own
    device: Where the model runs: cpu, cuda, or cuda:1 for the second GPU (default: cpu)
    threads: Worker threads; 0 = all there are (default: 0) (in [0 - 1024])
    isa: Kernels to use instead of the best ones: portable, avx2, avx512, amx
    report: Write a page with tables and charts to this HTML file
    progress: a bar of tqdm: True, False, or None, which shows one where tqdm is installed

    Returns the report, by the keys that docs/json.md lists for `certify`. Raises Error with the program's
    message, also for options that the program does not have.
    """
    given = {"reference": reference, "text": text, "ear": ear, "kl": kl, "context": context, "draft": draft,
             "drafts": drafts, "fixed_drafts": fixed_drafts, "top1": top1, "answers": answers, "card": card,
             "card_block": card_block, "device": device, "threads": threads, "isa": isa, "report": report, **options}
    return run_verb("certify", model, given, progress, True)


def compress(model: PathLike, output: PathLike, *, ear: Optional[Union[float, Sequence[float]]] = None,
             kl: Optional[float] = None, bits: Optional[float] = None, bytes: Optional[PathLike] = None,
             tokens_per_second: Optional[float] = None, for_: Optional[PathLike] = None, keep_embedding: bool = False,
             promise: Optional[PathLike] = None, calibration: Optional[Union[PathLike, Sequence[PathLike]]] = None,
             text: Optional[Union[PathLike, Sequence[PathLike]]] = None, certificate_windows: Optional[int] = None,
             calibration_tokens: Optional[int] = None, calibration_samples: Optional[int] = None,
             search_tokens: Optional[int] = None, context: Optional[int] = None, tasks: Optional[PathLike] = None,
             task: Optional[Union[PathLike, Sequence[PathLike]]] = None, limit: Optional[int] = None,
             shots_from: Optional[PathLike] = None, shots: Optional[int] = None, batch: Optional[int] = None,
             max_tokens: Optional[int] = None, stop: Optional[Union[PathLike, Sequence[PathLike]]] = None,
             plain: bool = False, accuracy_drop: Optional[float] = None, calibration_bits: Optional[float] = None,
             seeds: Optional[int] = None, formats: Optional[Union[PathLike, Sequence[PathLike]]] = None,
             rule: Optional[Union[PathLike, Sequence[PathLike]]] = None,
             ignore: Optional[Union[PathLike, Sequence[PathLike]]] = None, plan: Optional[PathLike] = None,
             from_table: Optional[PathLike] = None, grouping: Optional[PathLike] = None,
             method: Optional[PathLike] = None, permutations: Optional[int] = None,
             sensitivity_error: Optional[float] = None, allocate_by: Optional[PathLike] = None,
             search: Optional[PathLike] = None, generations: Optional[int] = None, max_trials: Optional[int] = None,
             seed: Optional[int] = None, tune: bool = False, tune_steps: Optional[int] = None,
             tune_windows: Optional[int] = None, tune_tokens: Optional[int] = None, tune_samples: Optional[int] = None,
             top1: Optional[float] = None, answers: Optional[int] = None, device: Optional[PathLike] = None,
             threads: Optional[int] = None, isa: Optional[PathLike] = None, activations: Optional[PathLike] = None,
             kv: Optional[PathLike] = None, draft: bool = False, dry_run: bool = False, fresh: bool = False,
             report: Optional[PathLike] = None, table: Optional[PathLike] = None, progress: Optional[bool] = None,
             **options: Any) -> Report:
    """Make the smallest model that stays as close to the original as you ask, and certify that.

    The options are those of `fidelio compress --help-all`:

    output: Folder to write; it appears complete or not at all
    ear: How much of the next-token probabilities must stay the same, from 0 to 1: 0.98 is an overlap with the
        original of 98% on average, as the lower confidence bound on unseen text. Several targets, as 0.99,0.98,
        make one model each from one search: OUTPUT-99, OUTPUT-98 (in [0 - 1])
    kl: KL divergence in nats a token to stay below, as the upper confidence bound on unseen text
    bits: Instead of a target: the best fidelity within this many bits a parameter of the whole file
    bytes: Instead of a target: the best fidelity within a file of this size: 1200000, 1.2MB, 1.2MiB
    tokens_per_second: Decode at least this many tokens a second, one sequence at a time, as timed on this machine:
        alone, the best fidelity within that time; or beside --ear, --kl, --bits or --bytes
    for_: Program that the plan must suit: fidelio (the default: the smallest model, which no other program reads),
        vllm, gptq or llama.cpp. The formats are then those that its kernels take as they are from `fidelio export`,
        and matrices that it fuses share one
    keep_embedding: Leave embedding and head as they are
    promise: What --ear and --kl are promised of. domain: every domain's mean; document: a new document of every
        domain; all: the mean over all text (default: domain)
    calibration: Calibration text, DIR, FILE or JSONL, each with :domain or without (default: what comes with
        fidelio), or the word tools (calls of tools, which come along); may be repeated
    text: Text to try plans on and to certify with, DIR, FILE or JSONL, each with :domain or without (default: what
        comes with fidelio). Documents are a folder's files, a JSONL's lines, a file's parts between form feeds; one
        of three is for trying. Beside it the words tools (calls of tools, which come along) and own or own:N (N
        answers of the model itself). May be repeated
    certificate_windows: The most windows of text that are certified on, and between 16 and 64 the most that plans
        are tried on (default: 240)
    calibration_tokens: Tokens the quantisers see (default: 131072; fewer above 30 million parameters, on a GPU
        above 500 million, 32768 at least)
    calibration_samples: How many of them the model writes itself, at temperature 1, each sequence begun with a few
        tokens of the text (default: 0)
    search_tokens: Tokens sensitivities are measured on (default: 4096, fewer above 100 million parameters, 2048 at
        least; on a GPU 16384, fewer above 2 billion, 4096 at least)
    context: Length of the windows of all texts (default: 512, or the model's context if that is shorter) (in [16 -
        1048576])
    tasks: File of questions with answers: fidelio's JSONL, or ARC, PIQA, WinoGrande, HellaSwag, BoolQ, OpenBookQA,
        GSM8K, MATH-500 as published
    task: Only this task of the file; may be repeated
    limit: Only this many questions of each task, the first ones
    shots_from: File whose first questions are shown, answered, before those of their task
    shots: So many of them
    batch: Answers generated side by side (default: 32) (in [1 - 4096])
    max_tokens: Longest answer in tokens (default: 320)
    stop: An answer also ends at this text; may be repeated
    plain: Ask with the bare question instead of the model's chat template
    accuracy_drop: Share of the model's accuracy on the questions that may be lost (in [0 - 1])
    calibration_bits: Size of the plan at which the loss of accuracy is counted (default: 4)
    seeds: How often each question is answered, sampled as the model's generation_config.json recommends, if it
        does; 0: once, greedily (default: 3) (in [0 - 1000])
    formats: Formats a plan may choose from beside the source's own (default: those of --from-table; else grids of
        2-4 bits and integers of 7 and 8 in groups of 64 with 8-bit scales; on a CPU grids of 5 and 6, on a GPU or
        with --tokens-per-second integers of 3-6)
    rule: Format of single weight matrices: PATTERN=FORMAT, as 'layers.0.*=int8g64zs8' or 'embedding=int8g64zs8';
        may be repeated, the last that matches holds
    ignore: Leave weight matrices as they are: a pattern, as 'layers.*.down'; may be repeated
    plan: Build and certify this plan (the `plan` of what --json writes), instead of searching
    from_table: Search with this sensitivity table, written by --table, instead of measuring one
    grouping: fused: q k v and gate up share a format, as vLLM needs; single: every weight matrix alone (default:
        fused)
    method: How sensitivities are measured. single: every group in one format, the others by the error of their
        weights; every: every group in every format; linear: by noise; shapley, unified: by permutations (default:
        single)
    permutations: Permutations of shapley and unified (default: 8) (in [2 - 1048576])
    sensitivity_error: Stop permutations when their standard errors are below this share of the total; 0: use them
        all (default: 0) (in [0 - 1])
    allocate_by: What adds up over groups: kl (it does), or ear (1 - EAR, as the paper has it; for comparison)
        (default: kl)
    search: ilp: the knapsack's answer, measured and corrected; ilp+evolve: evolution goes on from there; evolve:
        evolution alone, from the widest format everywhere, with whole plans measured and no sensitivities (default:
        ilp)
    generations: Of evolution, at most (default: 20 after the knapsack, 500 alone) (in [1 - 1048576])
    max_trials: Plans measured before giving up (default: 6)
    seed: Of noise, permutations, samples and answers
    tune: Tune every plan that is measured, on the calibration text and samples of the model itself, so that a
        smaller one meets the target; and the copy that --draft makes
    tune_steps: Steps of that (default: 300 on a CPU, 1000 on a GPU)
    tune_windows: Windows a step (default: 8 on a CPU, 32 on a GPU)
    tune_tokens: Tokens of the calibration text that it is tuned on (default: 524288)
    tune_samples: Tokens beside these that the model writes itself (default: 262144 on a CPU, 4194304 on a GPU)
    top1: How often greedy decoding must pick the original's token, from 0 to 1, as the lower confidence bound on
        unseen text (default: 0) (in [0 - 1])
    answers: Greedy answers of 200 tokens that the certificate compares with the original's, word for word, as 24;
        0: none (default: 0)
    device: Where the model runs: cpu, cuda, or cuda:1 for the second GPU (default: cpu)
    threads: Worker threads; 0 = all there are (default: 0) (in [0 - 1024])
    isa: Kernels to use instead of the best ones: portable, avx2, avx512, amx
    activations: Precision of activations: f32 (exact), a16 (the default, what serves), a8; for studies a6, a4, and
        aw, as many bits as the weight's codes
    kv: Key and value cache: f32, f16, bf16, i8, i4x2 (default f16; f32 with --activations f32)
    draft: Choose a draft too, as `fidelio draft` does, and keep it in the output's folder for --draft auto
    dry_run: Say what memory and time this would take, and stop; of a folder with config.json and no weights, what
        sizes it would have
    fresh: Begin anew even if OUTPUT.journal holds the work of a run that was interrupted
    report: Write a page about the plan to this HTML file
    table: Write the sensitivity table to this JSON file
    progress: a bar of tqdm: True, False, or None, which shows one where tqdm is installed

    Returns the report, by the keys that docs/json.md lists for `compress`. Raises Error with the program's
    message, also for options that the program does not have.
    """
    given = {"output": output, "ear": ear, "kl": kl, "bits": bits, "bytes": bytes,
             "tokens_per_second": tokens_per_second, "for_": for_, "keep_embedding": keep_embedding, "promise": promise,
             "calibration": calibration, "text": text, "certificate_windows": certificate_windows,
             "calibration_tokens": calibration_tokens, "calibration_samples": calibration_samples,
             "search_tokens": search_tokens, "context": context, "tasks": tasks, "task": task, "limit": limit,
             "shots_from": shots_from, "shots": shots, "batch": batch, "max_tokens": max_tokens, "stop": stop,
             "plain": plain, "accuracy_drop": accuracy_drop, "calibration_bits": calibration_bits, "seeds": seeds,
             "formats": formats, "rule": rule, "ignore": ignore, "plan": plan, "from_table": from_table,
             "grouping": grouping, "method": method, "permutations": permutations,
             "sensitivity_error": sensitivity_error, "allocate_by": allocate_by, "search": search,
             "generations": generations, "max_trials": max_trials, "seed": seed, "tune": tune, "tune_steps": tune_steps,
             "tune_windows": tune_windows, "tune_tokens": tune_tokens, "tune_samples": tune_samples, "top1": top1,
             "answers": answers, "device": device, "threads": threads, "isa": isa, "activations": activations, "kv": kv,
             "draft": draft, "dry_run": dry_run, "fresh": fresh, "report": report, "table": table, **options}
    return run_verb("compress", model, given, progress, True)


def evaluate(model: PathLike, *, text: Optional[Union[PathLike, Sequence[PathLike]]] = None,
             reference: Optional[PathLike] = None, context: Optional[int] = None, stride: Optional[int] = None,
             windows: Optional[int] = None, tasks: Optional[PathLike] = None,
             task: Optional[Union[PathLike, Sequence[PathLike]]] = None, limit: Optional[int] = None,
             shots_from: Optional[PathLike] = None, shots: Optional[int] = None, batch: Optional[int] = None,
             max_tokens: Optional[int] = None, stop: Optional[Union[PathLike, Sequence[PathLike]]] = None,
             plain: bool = False, temperature: Optional[float] = None, top_k: Optional[int] = None,
             top_p: Optional[float] = None, min_p: Optional[float] = None, repetition_penalty: Optional[float] = None,
             presence_penalty: Optional[float] = None, frequency_penalty: Optional[float] = None,
             seed: Optional[int] = None, recommended: bool = False, seeds: Optional[int] = None,
             cache: Optional[PathLike] = None, against: Optional[PathLike] = None, csv: Optional[PathLike] = None,
             draft: Optional[PathLike] = None, drafts: Optional[int] = None, draft_temperature: Optional[float] = None,
             reference_activations: Optional[PathLike] = None, view: Optional[int] = None,
             device: Optional[PathLike] = None, threads: Optional[int] = None, isa: Optional[PathLike] = None,
             activations: Optional[PathLike] = None, kv: Optional[PathLike] = None, report: Optional[PathLike] = None,
             progress: Optional[bool] = None, **options: Any) -> Report:
    """Perplexity, and fidelity against a reference (KL, EAR, agreement), or accuracy on tasks, with confidence intervals.

    The options are those of `fidelio eval --help-all`:

    text: Text file; may be repeated
    reference: Model folder to compare with
    context: Window length in tokens (default: the model's context) (in [2 - 16777216])
    stride: Distance of windows (default: the context, i.e. side by side)
    windows: Only this many windows of each text, the first ones
    tasks: File of questions with answers: fidelio's JSONL, or ARC, PIQA, WinoGrande, HellaSwag, BoolQ, OpenBookQA,
        GSM8K, MATH-500 as published
    task: Only this task of the file; may be repeated
    limit: Only this many questions of each task, the first ones
    shots_from: File whose first questions are shown, answered, before those of their task
    shots: So many of them
    batch: Answers generated side by side (default: 32) (in [1 - 4096])
    max_tokens: Longest answer in tokens (default: 320)
    stop: An answer also ends at this text; may be repeated
    plain: Ask with the bare question instead of the model's chat template
    temperature: How freely tokens are chosen; 0 = always the likeliest one (greedy) (default: 0)
    top_k: Choose among the k most likely tokens; 0 = all (default: 0)
    top_p: Choose among the most likely tokens that together reach probability p (default: 1)
    min_p: Choose among tokens at least so likely relative to the best
    repetition_penalty: Of tokens in prompt and answer; 1 = none (default: 1)
    presence_penalty: Subtracted from logits of tokens in the answer
    frequency_penalty: Subtracted per occurrence in the answer
    seed: Same seed, same answer
    recommended: Sample as the model's generation_config.json recommends, where other options do not say otherwise
    seeds: How often each question is answered, with seeds --seed, --seed + 1, ... (default: 1) (in [1 - 1000])
    cache: Keep the answers in this JSONL file and go on where it ends; sampled runs put their seed into its name
    against: JSONL of another program's greedy answers ("id", "text"): say where ours differ, with the logits
    csv: Write the table of accuracies as CSV
    draft: How well a draft guesses: its EAR on the texts, and its acceptance while the model continues them, or its
        acceptance by task; as `generate --draft` takes it (default: off)
    drafts: Tokens guessed at once (default: 8) (in [1 - 64])
    draft_temperature: At which the model continues the texts (default 1)
    reference_activations: Precision of the reference's activations: f32 (exact, the default), a16, a8
    view: Read only this many high bits of the layers' integer codes, as a draft would (in [1 - 7])
    device: Where the model runs: cpu, cuda, or cuda:1 for the second GPU (default: cpu)
    threads: Worker threads; 0 = all there are (default: 0) (in [0 - 1024])
    isa: Kernels to use instead of the best ones: portable, avx2, avx512, amx
    activations: Precision of activations: f32 (exact), a16 (the default, what serves), a8; for studies a6, a4, and
        aw, as many bits as the weight's codes
    kv: Key and value cache: f32, f16, bf16, i8, i4x2 (default f16; f32 with --activations f32)
    report: Write a page with tables and charts to this HTML file
    progress: a bar of tqdm: True, False, or None, which shows one where tqdm is installed

    Returns the report, by the keys that docs/json.md lists for `eval`. Raises Error with the program's
    message, also for options that the program does not have.
    """
    given = {"text": text, "reference": reference, "context": context, "stride": stride, "windows": windows,
             "tasks": tasks, "task": task, "limit": limit, "shots_from": shots_from, "shots": shots, "batch": batch,
             "max_tokens": max_tokens, "stop": stop, "plain": plain, "temperature": temperature, "top_k": top_k,
             "top_p": top_p, "min_p": min_p, "repetition_penalty": repetition_penalty,
             "presence_penalty": presence_penalty, "frequency_penalty": frequency_penalty, "seed": seed,
             "recommended": recommended, "seeds": seeds, "cache": cache, "against": against, "csv": csv, "draft": draft,
             "drafts": drafts, "draft_temperature": draft_temperature, "reference_activations": reference_activations,
             "view": view, "device": device, "threads": threads, "isa": isa, "activations": activations, "kv": kv,
             "report": report, **options}
    return run_verb("eval", model, given, progress, True)


def export(model: PathLike, output: PathLike, to: PathLike, *, profile: Optional[PathLike] = None, exact: bool = False,
           progress: Optional[bool] = None, **options: Any) -> Report:
    """Write a quantised model for other programs.

    The options are those of `fidelio export --help-all`:

    output: Folder (gguf: file) to write; it appears complete or not at all
    to: compressed-tensors, gptq or gguf
    profile: vllm: refuse what vLLM's kernels do not load
    exact: gguf: zero points as Q8_0, which rounds nothing, at 8.5 bits a weight
    progress: a bar of tqdm: True, False, or None, which shows one where tqdm is installed

    Returns the report, by the keys that docs/json.md lists for `export`. Raises Error with the program's
    message, also for options that the program does not have.
    """
    given = {"output": output, "to": to, "profile": profile, "exact": exact, **options}
    return run_verb("export", model, given, progress, True)


def inspect(model: PathLike, *, all: bool = False, **options: Any) -> Report:
    """Show what a model is: size in file and memory, formats, certificate.

    The options are those of `fidelio inspect --help-all`:

    all: List every weight matrix with its format and shape

    Returns the report, by the keys that docs/json.md lists for `inspect`. Raises Error with the program's
    message, also for options that the program does not have.
    """
    given = {"all": all, **options}
    return run_verb("inspect", model, given, None, False)


def quantize(model: PathLike, output: PathLike, format: PathLike, *, embedding: Optional[PathLike] = None,
             keep_embedding: bool = False, calibration: Optional[Union[PathLike, Sequence[PathLike]]] = None,
             calibration_tokens: Optional[int] = None, calibration_samples: Optional[int] = None,
             gradient_tokens: Optional[int] = None, calibration_context: Optional[int] = None, rotate: bool = False,
             atom: bool = False, method: Optional[PathLike] = None, seed: Optional[int] = None,
             steps: Optional[Union[PathLike, Sequence[PathLike]]] = None,
             paper: Optional[Union[PathLike, Sequence[PathLike]]] = None, alpha: Optional[float] = None,
             view_bits: Optional[int] = None, view_weight: Optional[float] = None, predictor: Optional[PathLike] = None,
             device: Optional[PathLike] = None, threads: Optional[int] = None, isa: Optional[PathLike] = None,
             fresh: bool = False, progress: Optional[bool] = None, **options: Any) -> Report:
    """Put every weight matrix of a model into one format.

    The options are those of `fidelio quantize --help-all`:

    output: Folder to write; it appears complete or not at all
    format: Format of the weight matrices, as int4g128z, int5g64zs8 or lut4g64
    embedding: Format of the embedding and the head (default: int8g32)
    keep_embedding: Leave embedding and head as they are, as some engines need
    calibration: Calibration text; .jsonl holds a text or conversation a line; may be repeated (default: the
        documentation text that comes with fidelio)
    calibration_tokens: Tokens of calibration text that are used (default: 131072; fewer above 30 million
        parameters, on a GPU above 750 million, 32768 at least)
    calibration_samples: How many of the calibration tokens the model writes itself, at temperature 1, each sequence
        begun with a few tokens of the text (default: 0)
    gradient_tokens: Of --paper and --steps curvature: tokens whose gradients are used (default: 32768)
    calibration_context: Length of a calibration sequence (default: 512, or the model's context if that is shorter)
        (in [16 - 1048576])
    rotate: Turn activations by Hadamard matrices and weights against them, as QuaRot does: the same function
        without outliers, for activations of 4 bits (--activations a4, --draft a4)
    atom: Keep the group of columns with most energy of every input in 8 bits, and put the others in order of
        theirs, as Atom does: for the same (int4g128, int4g64 or int4g32)
    method: rtn: round to nearest, in seconds; gptq: calibrate on text, which stays closer to the original and says
        first how long it takes (default: rtn, or gptq where an option about calibration is given)
    seed: Of those samples, and of --rotate
    steps: Refinements of GPTQ: some of act-order, range-search, descent, refit, feedback, source-inputs, curvature,
        or none (default: the first five; docs/formats.md says what each does)
    paper: Vector codes as SCVQ has them, without feedback and descent: which vectors have corrections (outliers,
        salient, residuals) and whether k-means weights them by salience (weights)
    alpha: Of --paper: the power of salience in the choice of residuals (default: 0.25) (in [0 - 4])
    view_bits: Choose codes so that this many of their high bits are a good weight too: a draft
    view_weight: How much the loss of that view counts beside the whole weight's (in [0 - 1000])
    predictor: Format of the model's own block that predicts a token more, which drafts are made by (default:
        int8g32s8; bf16 leaves it as it is)
    device: Where the model runs: cpu, cuda, or cuda:1 for the second GPU (default: cpu)
    threads: Worker threads; 0 = all there are (default: 0) (in [0 - 1024])
    isa: Kernels to use instead of the best ones: portable, avx2, avx512, amx
    fresh: Begin anew even if OUTPUT.journal holds the work of a run that was interrupted
    progress: a bar of tqdm: True, False, or None, which shows one where tqdm is installed

    Returns the report, by the keys that docs/json.md lists for `quantize`. Raises Error with the program's
    message, also for options that the program does not have.
    """
    given = {"output": output, "format": format, "embedding": embedding, "keep_embedding": keep_embedding,
             "calibration": calibration, "calibration_tokens": calibration_tokens,
             "calibration_samples": calibration_samples, "gradient_tokens": gradient_tokens,
             "calibration_context": calibration_context, "rotate": rotate, "atom": atom, "method": method, "seed": seed,
             "steps": steps, "paper": paper, "alpha": alpha, "view_bits": view_bits, "view_weight": view_weight,
             "predictor": predictor, "device": device, "threads": threads, "isa": isa, "fresh": fresh, **options}
    return run_verb("quantize", model, given, progress, True)
