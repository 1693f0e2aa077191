"""Asks for the forms of json-schema-org's own test suite (draft 2020-12) and judges every answer with PyPI's jsonschema.

  python tools/check_json_schema.py SUITE [--build build] [--draws 20]
  python tools/check_json_schema.py SUITE --server http://127.0.0.1:8000 [--asks 2] [--max-tokens 300]

SUITE is a checkout of json-schema-org/JSON-Schema-Test-Suite. Without a server the forms' own machines are walked at random (a driver is
compiled against the finished build): no model is needed, and the suite's own values are read too. With one each schema is asked
of it as a response_format. Prints a table; exits with 1 on an invalid answer, a value that is wrongly read or refused without a
reason that docs/serving.md gives, or more than 80 schemas refused.
"""
import argparse
import collections
import concurrent.futures
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import jsonschema
import referencing
import referencing.jsonschema

ROOT = pathlib.Path(__file__).parent.parent
MOST_REFUSED = 80


def groups_of(suite):
    for path in sorted((pathlib.Path(suite) / "tests" / "draft2020-12").glob("*.json")):
        for group in json.loads(path.read_text()):
            yield path.stem, group


def judge_of(suite, schema):
    """A validator that knows the documents to which the suite's schemas refer."""
    remotes = pathlib.Path(suite) / "remotes"
    found = []
    for path in remotes.rglob("*.json"):
        name = path.relative_to(remotes).as_posix()
        if name.startswith("draft") and not name.startswith("draft2020-12"):
            continue
        resource = referencing.Resource.from_contents(json.loads(path.read_text()), default_specification=referencing.jsonschema.DRAFT202012)
        found.append((f"http://localhost:1234/{name}", resource))
    registry = referencing.Registry().with_resources(found)
    return jsonschema.Draft202012Validator(schema, registry=registry)


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def build_driver(build, folder):
    driver = pathlib.Path(folder) / "driver"
    libraries = [f"{build}/libfidelio_{room}.a" for room in ("grammar", "text", "core")]
    subprocess.run(["c++", "-std=c++20", "-O2", f"-I{ROOT}/src", ROOT / "tools/check_json_schema_driver.cc", *libraries, "-lonig", "-lutf8proc", "-lfmt",
                    "-lcrypto", "-lspdlog", "-o", driver], check=True)
    return driver


def walked(driver, groups, draws):
    """What the driver says of each group."""
    lines = [json.dumps({"schema": g["schema"], "texts": [compact(t["data"]) for t in g["tests"]], "draws": draws}) + "\n" for _, g in groups]
    done = subprocess.run([driver], input="".join(lines), stdout=subprocess.PIPE, text=True, encoding="utf-8", check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def orders(value):
    """The value with its members in other orders, a few hundred of them at most."""
    if isinstance(value, dict):
        members = [[(k, v) for v in orders(one)] for k, one in value.items()]
        for order in itertools.islice(itertools.permutations(members), 120):
            yield from map(dict, itertools.islice(itertools.product(*order), 10))
    elif isinstance(value, list):
        yield from map(list, itertools.islice(itertools.product(*map(orders, value)), 200))
    else:
        yield int(value) if isinstance(value, float) and value == int(value) else value


def says_format(schema):
    if isinstance(schema, dict):
        return "format" in schema or any(map(says_format, schema.values()))
    return isinstance(schema, list) and any(map(says_format, schema))


def why_not_read(driver, schema, value):
    """The reason that docs/serving.md gives for a valid value's not being of the form."""
    if says_format(schema):
        return "format"
    others = list(itertools.islice(orders(value), 300))
    for name in ("keys", "numbers"):
        if name == "numbers":  # a constant is written as the schema has it
            others = [json.loads(compact(one).replace(".0", "")) for one in others] + [float(value) if isinstance(value, int) else value]
        if any(walked(driver, [("", {"schema": schema, "tests": [{"data": one} for one in others]})], 0)[0]["reads"]):
            return "keys in another order" if name == "keys" else "numbers spelt otherwise"
    return "keys beside the named ones" if isinstance(value, dict) and "propert" in json.dumps(schema) else "another type than the keywords'"


def check_forms(args, groups):
    count, bad = collections.Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        driver = build_driver(args.build, folder)
        for (name, group), said in zip(groups, walked(driver, groups, args.draws)):
            if "error" in said:
                count["refused"] += 1
                print(f"refused: {name}: {group['description']}: {said['error']}")
                continue
            count["taken"] += 1
            judge = judge_of(args.suite, group["schema"])
            for test, reads in zip(group["tests"], said["reads"]):
                if reads and not test["valid"]:
                    bad.append(f"{name}: {group['description']}: reads {compact(test['data'])}")
                if test["valid"] and not reads:
                    count["valid, not of the form: " + why_not_read(driver, group["schema"], test["data"])] += 1
                count[("valid" if test["valid"] else "invalid") + (" read" if reads else " not read")] += 1
            for text in said["drawn"]:
                judged(count, bad, judge, name, group, text)
    return count, bad


def judged(count, bad, judge, name, group, text):
    """One answer; None: it was cut off."""
    if text is None:
        count["answers cut off"] += 1
    elif judge.is_valid(json.loads(text)):
        count["answers valid"] += 1
    else:
        count["answers INVALID"] += 1
        bad.append(f"{name}: {group['description']}: answered {text}")


def ask(args, schema, seed):
    body = {"prompt": "An answer in JSON: ", "max_tokens": args.max_tokens, "temperature": 1, "seed": seed,
            "response_format": {"type": "json_schema", "json_schema": {"name": "suite", "schema": schema}}}
    request = urllib.request.Request(args.server.rstrip("/") + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as reply:
            choice = json.load(reply)["choices"][0]
            return choice["text"] if choice["finish_reason"] == "stop" else None
    except urllib.error.HTTPError as e:
        if e.code != 400:
            raise
        return json.load(e)["error"]


def check_server(args, groups):
    count, bad = collections.Counter(), []
    jobs = [(name, group, seed) for name, group in groups for seed in range(args.asks)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for (name, group, seed), text in zip(jobs, pool.map(lambda job: ask(args, job[1]["schema"], job[2]), jobs)):
            if isinstance(text, dict):
                if seed == 0:
                    count["refused"] += 1
                    print(f"refused: {name}: {group['description']}: {text['message']}")
                continue
            count["taken"] += seed == 0
            judged(count, bad, judge_of(args.suite, group["schema"]), name, group, text)
    return count, bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("suite")
    parser.add_argument("--build", default=ROOT / "build")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--server")
    parser.add_argument("--asks", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=300)
    args = parser.parse_args()
    groups = list(groups_of(args.suite))
    count, bad = check_server(args, groups) if args.server else check_forms(args, groups)
    for name, number in sorted(count.items()):
        print(f"{number:6}  {name}")
    for line in bad:
        print("WRONG", line)
    sys.exit(1 if bad or count["refused"] > MOST_REFUSED else 0)


if __name__ == "__main__":
    main()
