"""Compares fidelio's chat templates with jinja2, as transformers sets it up, over random conversations.

  python tools/check_chat.py [--build build] [--conversations 5000] [--seed 1] [--only FAMILY]... [--template FILE]...

The templates are those of make_chat_fixtures.py and any files that are named: published templates, for example. Half of the
conversations are such as clients hold them; the others are of any roles and kinds. Needs the packages transformers and jinja2, a
finished build and its compiler. Exit status 1 on any difference.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import make_chat_fixtures as fixtures
from check_tokenizer import ask

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = ["", "Hello", " Sé útil\n", "a\n\nb", "<|im_end|>", "<|channel|>analysis<|message|>x", "<|channel>thought\nhm<channel|>So", "{\"a\": 1}",
         "<think>\nx</think>\n\ny", "日本語 🙂", "  ", "'\"\\ & <b>", "<tool_response>r</tool_response>", "long " * 20]
NAMES = ["get_weather", "noop", "f", "été", "a.b", "zeta"]
TYPES = ["string", "number", "integer", "boolean", "array", "object", "null"]


def value(rng, depth=0):
    kind = rng.randrange(9 if depth < 3 else 7)
    if kind == 7:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 8:
        return {rng.choice(NAMES + TEXTS[1:4]): value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return [rng.choice(TEXTS), rng.randrange(-5, 2000), rng.choice([0.5, 1.5, -2.25, 1e20]), True, False, None, rng.choice(NAMES)][kind]


def schema(rng, depth=0):
    kind = rng.choice(TYPES if depth < 3 else TYPES[:4])
    one = {"type": kind}
    if rng.random() < 0.1:
        one["type"] = rng.sample(TYPES, rng.randint(1, 2))
    if rng.random() < 0.05:
        one = {}
    if rng.random() < 0.1:
        one = {"oneOf": [schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
    if rng.random() < 0.5:
        one["description"] = rng.choice(TEXTS)
    if kind == "string" and rng.random() < 0.4:
        one["enum"] = rng.sample(NAMES, 2)
    if rng.random() < 0.2:
        one["default"] = rng.choice([1, 1.5, "x", True, None, [1]]) if "enum" not in one else one["enum"][0]
    if rng.random() < 0.15:
        one["nullable"] = rng.random() < 0.8
    if kind == "array" and rng.random() < 0.8:
        one["items"] = schema(rng, depth + 1)
    if kind == "object" and rng.random() < 0.8:
        one.update(fields(rng, depth + 1))
    return one


def fields(rng, depth):
    names = rng.sample(NAMES + ["type", "description"], rng.randrange(4))
    result = {"properties": {name: schema(rng, depth) for name in names}}
    if rng.random() < 0.6:
        result["required"] = rng.sample(names, rng.randrange(len(names) + 1))
    return result


def tools(rng):
    result = []
    for name in rng.sample(NAMES, rng.randint(1, 3)):
        function = {"name": name}
        if rng.random() < 0.9:
            function["description"] = rng.choice(TEXTS)
        if rng.random() < 0.9:
            function["parameters"] = {"type": "object", **fields(rng, 0)}
        if rng.random() < 0.1:
            function["response"] = {"type": "object", "description": rng.choice(TEXTS)}
        result.append({"type": "function", "function": function})
    return result


def calls(rng, number):
    result = []
    for i in range(number):
        arguments = {rng.choice(NAMES): value(rng) for _ in range(rng.randrange(4))}
        function = {"name": rng.choice(NAMES), "arguments": arguments if rng.random() < 0.9 else json.dumps(arguments)}
        result.append({"id": f"call{i:05d}", "type": "function", "function": function})
    return result


def thought(rng, message):
    if rng.random() < 0.5:
        message[rng.choice(["reasoning_content", "reasoning", "thinking"])] = rng.choice(TEXTS)
    return message


def turns(rng):
    """A conversation as clients hold it."""
    messages = [{"role": rng.choice(["system", "developer"]), "content": rng.choice(TEXTS)}] if rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": rng.choice(TEXTS)})
        for _ in range(rng.choice([0, 0, 1, 2])):
            made = calls(rng, rng.choice([1, 1, 1, 2]))
            messages.append(thought(rng, {"role": "assistant", "content": rng.choice(["", "", None, "Wait."]), "tool_calls": made}))
            for one in made:
                messages.append({"role": "tool", "tool_call_id": one["id"], "content": rng.choice(TEXTS)})
                if rng.random() < 0.3:
                    messages[-1]["name"] = one["function"]["name"]
        if rng.random() < 0.8:
            messages.append(thought(rng, {"role": "assistant", "content": rng.choice(TEXTS)}))
    return messages


def anything(rng):
    messages = []
    for _ in range(rng.randrange(6)):
        message = {"role": rng.choice(["system", "developer", "user", "assistant", "tool", "critic"])}
        content = rng.random()
        if content < 0.7:
            message["content"] = rng.choice(TEXTS)
        elif content < 0.8:
            message["content"] = [{"type": kind, "text": "t"} for kind in rng.sample(["text", "image", "audio", "video", "text"], 2)]
        elif content < 0.9:
            message["content"] = value(rng)
        if rng.random() < 0.3:
            message["tool_calls"] = calls(rng, rng.randrange(3))
        if rng.random() < 0.1:
            message["tool_responses"] = [{"name": "f", "response": value(rng)}]
        if rng.random() < 0.3:
            message["tool_call_id"] = "call00000"
        messages.append(thought(rng, message))
    return messages


def conversation(rng):
    messages = turns(rng) if rng.random() < 0.5 else anything(rng)
    extra = {"add_generation_prompt": rng.random() < 0.8}
    if rng.random() < 0.5:
        extra["tools"] = tools(rng)
    if rng.random() < 0.5:
        extra["enable_thinking"] = rng.random() < 0.5
    if rng.random() < 0.3:
        extra["reasoning_effort"] = rng.choice(["low", "medium", "high"])
    if rng.random() < 0.1:
        extra["builtin_tools"] = rng.sample(["browser", "python", "other"], rng.randint(0, 2))
    if rng.random() < 0.1:
        extra["model_identity"] = "You are a test."
    if rng.random() < 0.2:
        extra["preserve_thinking"] = rng.random() < 0.5
    return messages, extra


def check(driver, name, source, number, seed):
    rng = random.Random(seed)
    asked = [conversation(rng) for _ in range(number)]
    tokens = fixtures.TOKENS
    requests = [{"template": source, "tokens": tokens}] + [{"messages": m, "extra": e} for m, e in asked]
    answers = ask(driver, requests)
    wrong, refused = [], 0
    if answers[0] is None or len(answers) != len(requests):
        sys.exit(f"{name}: the template is not read, or the driver stopped after {len(answers)} of {len(requests)} answers")
    for (messages, extra), got in zip(asked, answers[1:]):
        want = fixtures.render(source, {"tools": None, "documents": None, **tokens, "messages": messages, **extra})
        refused += want is None
        if want != got:
            wrong.append(f"{json.dumps(messages, ensure_ascii=False)}\n  {json.dumps(extra, ensure_ascii=False)}\n    want {want!r}\n    got  {got!r}")
    print(f"{name}: {number} conversations, {refused} refused, {len(wrong)} different", flush=True)
    for one in wrong[:3]:
        print("  " + one)
    return len(wrong)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=ROOT / "build")
    parser.add_argument("--conversations", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--template", action="append", default=[])
    arguments = parser.parse_args()
    sources = {name: source for name, source in fixtures.FAMILIES.items()
               if name in arguments.only or not (arguments.only or arguments.template)}
    for file in arguments.template:
        sources[file] = pathlib.Path(file).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        driver = pathlib.Path(folder) / "driver"
        source = pathlib.Path(__file__).with_name("check_chat_driver.cc")
        build = arguments.build
        subprocess.run(["c++", "-std=c++20", "-O1", f"-I{ROOT}/src", source, f"{build}/libfidelio_text.a", f"{build}/libfidelio_core.a",
                        "-lonig", "-lutf8proc", "-lfmt", "-lcrypto", "-lspdlog", "-o", driver], check=True)
        wrong = sum(check(driver, name, source, arguments.conversations, arguments.seed) for name, source in sources.items())
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
