"""Small tokenisers with the exact component settings of each supported model family, and texts that try them.

Shared by make_tokenizer_fixtures.py and check_tokenizer.py. The vocabularies are trained on models/data/docs-calibration.txt;
everything else of each tokenizer.json is what the family's published file says (plus a few added tokens with every
combination of flags).
"""
import json
import pathlib
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "models" / "data"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
# Words by case (Mistral's Tekken), and the same with contractions (o200k: Phi-4-mini).
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = TEKKEN.replace(r"\p{M}]+|", r"\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|").replace(
    r"\p{M}]*|\p{N}|", r"\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# In Qwen3.5 and its successors a mark, such as an accent or a vowel sign, belongs to its word.
QWEN35 = QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")
BYTE_TOKENS = [f"<0x{b:02X}>" for b in range(256)]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
# Text of other scripts and emoji, so that merges of more than ASCII exist.
WORLD = ("Быстрая лиса прыгает 你好世界 世界 こんにちは 안녕하세요 שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดี café naïve Ελλάδα 🙂🙂 👩‍👩‍👧 "
         "don't we'll I'm they've he'd 12345 67 890\n\n\n    indented\t\ttabs\r\n" * 20)

QWEN35_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"]
HARMONY_SPECIALS = ["<|startoftext|>", "<|endoftext|>", "<|reserved_200000|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>",
                    "<|end|>", "<|message|>", "<|call|>", "<|endofprompt|>"]
GEMMA4_SPECIALS = ["<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|\"|>", "<|think|>",
                   "<|channel>", "<channel|>", "<|turn>", "<turn|>", "<|image|>"]
ADDED = [  # content, flags beyond the defaults of AddedToken(special=False)
    ("<|left|>", dict(lstrip=True, normalized=False)),
    ("<|right|>", dict(rstrip=True, normalized=False)),
    ("<|both|>", dict(lstrip=True, rstrip=True, normalized=True)),
    ("word", dict(single_word=True, normalized=True)),
    ("élan", dict(normalized=True)),
    ("tool call", dict(normalized=False, special=True)),
    ("<|le", dict(normalized=False)),
    ("[new]", dict(single_word=True, normalized=False, special=True, lstrip=True)),
]


def corpus():
    text = (DATA / "docs-calibration.txt").read_text(encoding="utf-8")[:300_000]
    return [line + "\n" for line in text.split("\n")] + [WORLD]


def add_tokens(tokenizer, specials):
    tokenizer.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in specials])
    for content, flags in ADDED:
        tokenizer.add_tokens([AddedToken(content, **{"special": False, **flags})])
    return tokenizer


def byte_level(pattern, vocabulary, normalizer=None, specials=(), bos=None, ignore_merges=False, **pre):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=ALPHABET, show_progress=False))
    t.decoder = decoders.ByteLevel()
    add_tokens(t, specials)
    if bos:
        t.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1",
                                          special_tokens=[(bos, t.token_to_id(bos))])])
    else:
        t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def sentencepiece(vocabulary, variant):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if variant == "normalizer":  # Llama 2, Mistral v0.1
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        # Trained on words: SentencePiece does not let a piece run over a space.
        t.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="never", split=True)
    else:  # Llama 2 "legacy": false, Mistral v0.3
        t.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=variant, split=False)
    t.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<unk>", "<s>", "</s>"] + BYTE_TOKENS, show_progress=False,
        limit_alphabet=400))
    if variant == "normalizer":
        t.pre_tokenizer = None
        t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                       decoders.Strip(" ", 1, 0)])
    elif variant == "first":
        t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                       decoders.Strip(" ", 1, 0)])
    else:
        t.decoder = decoders.Metaspace("▁", prepend_scheme=variant)
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    # The byte tokens were special only to get their ids.
    file = json.loads(t.to_str())
    file["added_tokens"] = [a for a in file["added_tokens"] if a["id"] < 3]
    return add_tokens(Tokenizer.from_str(json.dumps(file)), [])


def gemma(vocabulary, specials=("<start_of_turn>", "<end_of_turn>")):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # for the training alone, which keeps words apart
    t.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<pad>", "<eos>", "<bos>", "<unk>"] + BYTE_TOKENS, show_progress=False,
        limit_alphabet=400))
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    t.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos>:1 $B:1", special_tokens=[("<bos>", 2)])
    file = json.loads(t.to_str())
    file["added_tokens"] = [a for a in file["added_tokens"] if a["id"] < 4]
    return add_tokens(Tokenizer.from_str(json.dumps(file)), list(specials))


def gpt2(vocabulary):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)])
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=ALPHABET, show_progress=False))
    t.decoder = decoders.ByteLevel()
    return add_tokens(t, ["<|endoftext|>"])


def mixed(vocabulary):
    """No family's: every other component at once."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    t.normalizer = normalizers.Sequence([normalizers.Strip(left=True, right=True), normalizers.NFKD(), normalizers.StripAccents(),
                                         normalizers.Lowercase(), normalizers.Replace(Regex(r"[\t ]+"), " ")])
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split("::", "merged_with_previous"), pre_tokenizers.Split(Regex(r"\d+"), "contiguous", invert=True),
        pre_tokenizers.Split(Regex(r"[#@]"), "merged_with_next"), pre_tokenizers.Whitespace(),
        pre_tokenizers.Punctuation("isolated"), pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.WhitespaceSplit()])
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=["<unk>"], show_progress=False,
                                                        limit_alphabet=200))
    return add_tokens(t, [])


FAMILIES = {
    "llama3": lambda v: byte_level(LLAMA3, v, specials=["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>"],
                                   bos="<|begin_of_text|>", ignore_merges=True),
    "qwen": lambda v: byte_level(QWEN, v, normalizer=normalizers.NFC(),
                                 specials=["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
    "llama2": lambda v: sentencepiece(v, "normalizer"),
    "metaspace_first": lambda v: sentencepiece(v, "first"),
    "metaspace_always": lambda v: sentencepiece(v, "always"),
    "gpt2_digits": lambda v: gpt2(v),
    "mixed": lambda v: mixed(v),
    "tekken": lambda v: byte_level(TEKKEN, v, specials=["<s>", "</s>", "[INST]", "[/INST]"], bos="<s>", ignore_merges=True),
    "o200k": lambda v: byte_level(O200K, v, specials=["<|endoftext|>", "<|user|>", "<|end|>"]),
    "gemma": lambda v: gemma(v),
    "qwen35": lambda v: byte_level(QWEN35, v, normalizer=normalizers.NFC(), specials=QWEN35_SPECIALS),
    # gpt-oss, as transformers makes it of tiktoken's o200k_harmony, and Gemma 4.
    "harmony": lambda v: byte_level(O200K, v, specials=HARMONY_SPECIALS, ignore_merges=True),
    "gemma4": lambda v: gemma(v, GEMMA4_SPECIALS),
}


def texts_of_testbed():
    """Every text of models/data: whole files, and every string of every line of the JSON Lines files."""
    result = [(DATA / name).read_text(encoding="utf-8") for name in ("docs-calibration.txt", "docs-heldout.txt")]
    for name in ("tasks.jsonl", "tasks-greedy.jsonl", "tasks-calibration.jsonl"):
        for line in (DATA / name).read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            result += [v for v in record.values() if isinstance(v, str)]
    return result


MARKS = [(0x300, 0x36F), (0x483, 0x489), (0x591, 0x5BD), (0x610, 0x61A), (0x64B, 0x65F), (0x900, 0x903), (0x93A, 0x94F), (0x981, 0x983),
         (0x9BC, 0x9CD), (0xA3C, 0xA51), (0xABC, 0xACD), (0xB82, 0xB82), (0xBBE, 0xBCD), (0xC3E, 0xC56), (0xD3E, 0xD4D), (0xE31, 0xE3A),
         (0xE47, 0xE4E), (0xEB1, 0xEBC), (0xF71, 0xF84), (0x102B, 0x103E), (0x17B4, 0x17D3), (0x1AB0, 0x1ACE), (0x1DC0, 0x1DFF),
         (0x20D0, 0x20F0), (0x302A, 0x302F), (0x3099, 0x309A), (0xFE00, 0xFE0F), (0xFE20, 0xFE2F), (0x11000, 0x11002), (0x1D165, 0x1D169),
         # These are letters and marks of Unicode 15 and 16.
         (0x11F00, 0x11F10), (0x113B5, 0x113C0), (0x1E030, 0x1E06D), (0x13470, 0x13490), (0x31350, 0x31360), (0x116D0, 0x116D9)]
RANGES = [(0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x591, 0x5F4),
          (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x2000, 0x206F),
          (0x2070, 0x218F), (0x2190, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF),
          (0xFB00, 0xFB4F), (0xFE00, 0xFE0F), (0xFF00, 0xFFEF), (0x1D400, 0x1D7FF), (0x1F1E6, 0x1F1FF), (0x1F300, 0x1F64F),
          (0x1F680, 0x1F6FF), (0x20000, 0x2A6DF), (0xE000, 0xE010), (0, 0x1F), (0x7F, 0x9F), (0xE0100, 0xE0110)]
SPACES = " \t\n\r\v\f\x1c\x1d\x85\xa0\u1680\u2000\u2003\u2009\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
NUMBERS = ["0", "7", "42", "123", "1234", "12345678901", "3.14", "1,000,000", "٣٤٥", "½", "Ⅷ", "²³", "１２３", "-5", "0x1F", "1e-9"]
PHRASES = ["don't", "DON'T", "we'LL", "I'm", "they've", "he'd", "it's", "'s", "’s", "l'élan", "e\u0301lan", "word", "words", "sword",
           "Hello", "the", "function", "foo_bar", "CamelCase", "你好", "世界", "שלום", "नमस्ते", "안녕", "가", "각", "e\u0323\u0301",
           "ﬁ", "Å", "\u212b", "İ", "ẞ", "ǅ", "👩‍👩‍👧", "🇩🇪", "❤️", "\u200d", "\u200e", "::", "a::b", "#tag", "@name", "...", "?!", "-->", "()",
           "<0x41>", "<0xE2>", "▁", "▁▁", "Ġ", "Ċ", "<unk>", "\ufffd", "\ud7a3\u11a8", "\u1100\u1161\u11a8", "A\u030a\u0323"]


def random_text(rng, specials):
    parts = []
    for _ in range(rng.choice([1, 2, 3, 5, 8, 13, 20])):
        kind = rng.random()
        if kind < 0.25:
            low, high = rng.choice(RANGES)
            parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 8))))
        elif kind < 0.45:
            parts.append(rng.choice(SPACES[:4] if rng.random() < 0.6 else SPACES) * rng.choice([1, 1, 1, 2, 3, 4, 9]))
        elif kind < 0.55:
            parts.append("".join(rng.choice(SPACES) for _ in range(rng.randint(1, 5))))
        elif kind < 0.65:
            parts.append(rng.choice(NUMBERS))
        elif kind < 0.85:
            parts.append(rng.choice(PHRASES))
        elif kind < 0.97:
            text = rng.choice(specials)
            cut = rng.random()
            parts.append(text if cut < 0.8 else text[:rng.randint(1, len(text))] if cut < 0.9 else text.upper())
        else:  # any code point but surrogates
            parts.append(chr(rng.choice([rng.randint(1, 0xD7FF), rng.randint(0xE000, 0x10FFFF)])))
    return "".join(parts)


def marked_text(rng, specials):
    """Marks of many scripts behind letters, digits, spaces, signs and each other; half of the texts are decomposed."""
    parts = []
    for _ in range(rng.randint(1, 8)):
        parts.append(random_text(rng, specials)[:12])
        low, high = rng.choice(MARKS)
        parts += [chr(rng.randint(low, high)) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    text = "".join(parts)
    return unicodedata.normalize("NFD", text) if rng.random() < 0.5 else text


def fuzz_texts(tokenizer, count, seed, make=random_text):
    rng = random.Random(seed)
    specials = [t.content for t in tokenizer.get_added_tokens_decoder().values()] or ["<s>"]
    return [make(rng, specials) for _ in range(count)]


def fuzz_ids(tokenizer, count, seed):
    rng = random.Random(seed)
    size = tokenizer.get_vocab_size()
    byte_like = [i for i in range(size) if len(tokenizer.id_to_token(i) or "") in (1, 6)] or list(range(size))
    result = []
    for _ in range(count):
        pool = byte_like if rng.random() < 0.5 else range(size + 3)  # the last few do not exist
        result.append([rng.choice(pool) for _ in range(rng.choice([1, 2, 3, 5, 9, 20]))])
    return result
