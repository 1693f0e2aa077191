"""Exercises in the forms of models/data/tasks.jsonl, made at random: what tools/make_hybrid.py teaches its model to answer.

`Exercises(known, sentences, definitions)` makes them: `known` are questions that no exercise may repeat (those of tasks.jsonl), `sentences` stand between
the facts of an exercise of recall, and `definitions` are pairs of a word and its meaning. Every exercise is a pair: a question, and the answer with the
steps to it between <think> and </think>.
"""
import re

NAMES = "Ava Ben Cara Dan Ella Finn Gia Hugo Iris Jack Kira Liam Maya Nora Omar Pia Quinn Rosa Sam Tara Uma Vera Will Xena Yara Zane".split()
GOODS = "apples books cards coins cookies marbles pencils ribbons shells stamps stickers tickets".split()
THINGS = "bell book box coin cup hat key lamp ring stone".split()
COLOURS = "amber blue coral golden green ivory red silver teal violet".split()
WORDS = """amber basket button candle cloud copper dragon forest garden jacket ladder lemon magnet maple mirror ocean pepper piano planet river rocket
stone tiger violin window""".split()
FORMS = (("long_addition", 3), ("multiplication", 3), ("expression", 2), ("word_problem", 3), ("list_ops", 2), ("instruction", 1), ("state_tracking", 3),
         ("code_trace", 3), ("recall", 2), ("definition_mc", 2))


def thought(steps, answer):
    return "<think>\n" + steps + "\n</think>\n\n" + answer


def long_addition(r):
    length = r.randint(3, 8)
    a, b = (r.randint(10 ** (length - 1), 10**length - 1) for _ in range(2))
    carry, lines = 0, []
    for x, y in zip(reversed(str(a)), reversed(str(b))):
        total = int(x) + int(y) + carry
        lines.append(f"{x} + {y} + {carry} = {total}, write {total % 10}, carry {total // 10}")
        carry = total // 10
    return f"Add {a} and {b}.", thought("\n".join(lines), f"The answer is {a + b}.")


def multiplication(r):
    a, b = r.randint(12, 999), r.randint(11, 99)
    ones, tens = b % 10, b - b % 10
    steps = f"{a} * {ones} = {a * ones}\n{a} * {tens} = {a * tens}\n{a * ones} + {a * tens} = {a * b}"
    return f"Multiply {a} by {b}.", thought(steps, f"The answer is {a * b}.")


def applied(a, op, b):
    return a + b if op == "+" else a - b if op == "-" else a * b


def expression(r):
    value = r.randint(2, 99)
    text, lines = str(value), []
    for _ in range(r.randint(2, 8)):
        op = r.choice("++--*" if abs(value) < 2000 else "+-")
        by = r.randint(2, 9) if op == "*" else r.randint(2, 150)
        after = applied(value, op, by)
        lines.append(f"{value} {op} {by} = {after}")
        text, value = f"({text} {op} {by})", after
    return f"Compute {text}.", thought("\n".join(lines), f"The answer is {value}.")


def word_problem(r):
    name, other, goods = *r.sample(NAMES, 2), r.choice(GOODS)
    value = r.randint(3, 120)
    said, steps = [f"{name} has {value} {goods}."], [f"{name} starts with {value}."]
    for _ in range(r.randint(2, 7)):
        kind = r.choice(("earns", "earns", "more", "more", "less", "twice", "times", "bags", "half"))
        before = value
        if kind in ("earns", "more"):
            by = r.randint(2, 30) if kind == "earns" else r.randint(5, 250)
            ways = ("{0} earns {1} more.",) if kind == "earns" else ("{0} finds {1} more.", "{0} buys {1} more.", "A friend gives {0} {1} more.")
            said.append(r.choice(ways).format(name, by))
            value += by
            steps.append(f"{before} + {by} = {value}.")
        elif kind == "less" and value > 4:
            by = r.randint(1, min(value - 1, 700))
            said.append(f"{name} {r.choice(('gives away', 'sells', 'loses'))} {by}.")
            value -= by
            steps.append(f"{before} - {by} = {value}.")
        elif kind == "bags":
            bags, each = r.randint(2, 12), r.randint(2, 15)
            said.append(f"{name} gets {bags} bags with {each} {goods} each.")
            value += bags * each
            steps.append(f"{bags} * {each} = {bags * each}. {before} + {bags * each} = {value}.")
        elif kind == "half" and value % 2 == 0:
            said.append(f"{name} gives half of them to {r.choice(NAMES) if r.random() < 0.5 else other}.")
            value //= 2
            steps.append(f"{before} / 2 = {value}.")
        elif value < 3000:
            by = 2 if kind == "twice" else r.randint(3, 5)
            said.append("Then the number doubles." if by == 2 else f"Now {name} has {by} times as many.")
            value *= by
            steps.append(f"{before} * {by} = {value}.")
    return " ".join(said) + f" How many {goods} does {name} have now?", thought(" ".join(steps), f"The answer is {value}.")


def list_ops(r):
    numbers = [r.randint(1, 99) for _ in range(r.randint(4, 9))]
    even = [n for n in numbers if n % 2 == 0] or ["none"]
    forms = (("Sort in ascending order", sorted(numbers)), ("Sort in descending order", sorted(numbers)[::-1]), ("Reverse the list", numbers[::-1]),
             ("What is the largest number in", [max(numbers)]), ("List the even numbers in", even))  # fmt: skip
    asked, answer = r.choice(forms)
    return f"{asked}: {' '.join(map(str, numbers))}", thought("", " ".join(map(str, answer)))


def instruction(r):
    words = r.sample(WORDS, r.randint(3, 6))
    lengths = " ".join(str(len(word)) for word in words)
    forms = (("Write each word on its own line, in reverse order", "\n".join(words[::-1])), ("Put these words in alphabetical order", " ".join(sorted(words))),
             ("Write these words in upper case", " ".join(words).upper()), ("How many letters are in each word", lengths))  # fmt: skip
    asked, answer = r.choice(forms)
    return f"{asked}: {' '.join(words)}", thought("", answer)


def state_tracking(r):
    people = r.sample(NAMES, r.randint(3, 5))
    holds = dict(zip(people, r.sample(THINGS, len(people))))
    said = " ".join(f"{name} holds the {thing}." for name, thing in holds.items())
    lines = [", ".join(f"{name} {thing}" for name, thing in holds.items())]
    for _ in range(r.randint(2, 6)):
        a, b = r.sample(people, 2)
        holds[a], holds[b] = holds[b], holds[a]
        said += f" {a} and {b} swap."
        lines.append(f"{a} and {b} swap: " + ", ".join(f"{name} {thing}" for name, thing in holds.items()))
    asked = r.choice(people)
    return said + f" What does {asked} hold?", thought("\n".join(lines), f"The {holds[asked]}.")


def code_trace(r):
    values = {name: r.randint(1, 20) for name in "abc"}
    code, steps = [f"{name} = {value}" for name, value in values.items()], []
    for _ in range(r.randint(2, 5)):
        to, source, op, by = r.choice("abc"), r.choice("abc"), r.choice("+-*"), r.randint(2, 9)
        after = applied(values[source], op, by)
        code.append(f"{to} = {source} {op} {by}")
        steps.append(f"{to} = {values[source]} {op} {by} = {after}")
        values[to] = after
    if r.random() < 0.4:
        to, source = r.sample("abc", 2)
        times = r.randint(2, 4)
        code += [f"for i in range({times}):", f"    {to} += {source}"]
        for i in range(times):
            steps.append(f"i = {i}: {to} = {values[to]} + {values[source]} = {values[to] + values[source]}")
            values[to] += values[source]
    asked = r.choice("abc")
    question = "What does this program print?\n```python\n" + "\n".join(code) + f"\nprint({asked})\n```"
    return question, thought("\n".join(steps), f"It prints {values[asked]}.")


class Exercises:
    def __init__(self, known, sentences, definitions):
        self.known, self.sentences, self.definitions = known, sentences, definitions
        self.words = [word for word, _ in definitions]
        self.kinds = [name for name, weight in FORMS for _ in range(weight) if name != "definition_mc" or len(definitions) > 20]

    def recall(self, r):
        facts = {}
        for _ in range(r.randint(4, 12)):
            facts[f"{r.choice(COLOURS)} {r.choice(THINGS)}"] = r.randint(1000, 9999)
        said = []
        for thing, code in facts.items():
            said.append(f"The code of the {thing} is {code}.")
            if r.random() < 0.5:
                said.append(r.choice(self.sentences))
        asked = r.choice(list(facts))
        return " ".join(said) + f" What is the code of the {asked}?", thought("", str(facts[asked]))

    def definition_mc(self, r):
        word, meaning = r.choice(self.definitions)
        choices = list(dict.fromkeys([word] + [r.choice(self.words) for _ in range(3)]))
        r.shuffle(choices)
        return f"Which word means: {meaning}? Choose from: {', '.join(choices)}.", thought("", word)

    def one(self, r):
        """Returns a question and its answer; `r` is a random.Random."""
        while True:
            kind = r.choice(self.kinds)
            question, answer = getattr(self, kind)(r) if hasattr(self, kind) else globals()[kind](r)
            if question not in self.known:
                return question, answer


def sentences_of(texts):
    """Returns sentences of plain words, as stand between the facts of an exercise of recall."""
    found = []
    for text in texts:
        found += re.findall(r"(?:(?<=\. )|(?<=\n))[A-Z][A-Za-z ,]{30,110}\.(?=\s)", text)
    return sorted(set(found))
