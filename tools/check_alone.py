#!/usr/bin/env python3
"""Many clients against a running `fidelio serve`: every answer must be, to the byte, the one that the same request has alone (standard library alone).

Conversations share beginnings, some have tools and must or may call them, some think and some do not, half are streamed. Each is first asked alone.

    fidelio serve MODEL --draft mtp+lookup --port 8000 & tools/check_alone.py http://127.0.0.1:8000 [seconds] [clients] [requests]
"""
import json
import random
import sys
import threading
import time
from urllib.parse import urlparse

from load_serve import GET, Connection, request

BEGINNINGS = ("You answer briefly and to the point, in plain words. " * 12, "You keep notes. Every note has a text and a weight, and nothing else. " * 10)
TOOLS = [{"type": "function", "function": {"name": "save_note", "description": "Keeps a note", "parameters": {
    "type": "object", "properties": {"text": {"type": "string", "maxLength": 20}, "weight": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["text", "weight"]}}},
    {"type": "function", "function": {"name": "get_weather", "description": "Current weather of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}}}]  # fmt: skip
OTHERS = ("id", "created", "drafted", "completion_tokens_details", "prompt_tokens_details")  # keys of what depends on other requests
QUESTIONS = ("Add 5610 and 9542.", "Multiply 627 by 24.", "Sort in ascending order: 54 55 23 56 17", "Do I need a coat in Ghent today?",
             "Liam holds the bell. Zane holds the lamp. Zane and Liam swap. What does Zane hold?", "Explain what a database index is.")  # fmt: skip


def conversation(number):
    chance = random.Random(number)
    messages = [{"role": "system", "content": BEGINNINGS[number % 2]}] if number % 3 else []
    messages.append({"role": "user", "content": chance.choice(QUESTIONS)})
    if number % 4 == 3:
        messages += [{"role": "assistant", "content": "It is so."}, {"role": "user", "content": chance.choice(QUESTIONS)}]
    body = {"messages": messages, "max_tokens": chance.randint(1, 120), "seed": number, "temperature": chance.choice([0, 0, 0.7, 1.2]),
            "stream": number % 4 >= 2, "chat_template_kwargs": {"enable_thinking": number % 5 < 3}}  # fmt: skip
    if number % 3 == 2:
        body |= {"tools": TOOLS, "tool_choice": chance.choice(["auto", "required"])}
    if number % 7 == 0:
        body |= {"logprobs": True, "top_logprobs": 2}
    return body


def told(body, answer):
    """What an answer says, as text: without the names of answers and calls, the time, and what is told of drafts and reuse."""
    def kept(value):
        if isinstance(value, dict):
            return {key: kept(part) for key, part in value.items() if key not in OTHERS}
        return [kept(part) for part in value] if isinstance(value, list) else value

    if not body["stream"]:
        return json.dumps(kept(json.loads(answer)))
    pieces = {}
    for line in answer.decode().split("\n"):
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            delta = choice["delta"]
            for call in delta.get("tool_calls", []):
                for key in ("name", "arguments"):
                    place = f"call {call['index']} {key}"
                    pieces[place] = pieces.get(place, "") + (call["function"].get(key) or "")
            for key in ("content", "reasoning_content"):
                pieces[key] = pieces.get(key, "") + (delta.get(key) or "")
            for score in ((choice.get("logprobs") or {}).get("content") or []):
                pieces["scores"] = pieces.get("scores", "") + json.dumps(kept(score))
            pieces["end"] = choice.get("finish_reason") or pieces.get("end")
    return json.dumps(pieces, sort_keys=True)


def main(url, seconds, clients, count):
    address = (urlparse(url).hostname, urlparse(url).port or 80)
    bodies = [conversation(number) for number in range(count)]

    def ask(connection, body):
        connection.send(request("/v1/chat/completions", body))
        status, answer = connection.answer()
        return told(body, answer) if status == 200 else f"status {status}: {answer[:300]}"

    connection = Connection(address)
    alone = [ask(connection, body) for body in bodies]
    if refused := [answer for answer in alone if answer.startswith("status")]:
        raise SystemExit(f"{len(refused)} requests are not answered alone, the first with {refused[0]}")
    called = sum("tool_calls" in answer or '"call 0' in answer for answer in alone)
    lock, counts, wrong = threading.Lock(), [0], []
    end = time.time() + seconds

    def client(number):
        chance, own = random.Random(number), Connection(address)
        while time.time() < end:
            which = chance.randrange(count)
            try:
                answer = ask(own, bodies[which])
            except (OSError, EOFError) as error:
                answer, own = repr(error), Connection(address)
            with lock:
                counts[0] += 1
                if answer != alone[which]:
                    wrong.append((which, alone[which], answer))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection = Connection(address)  # the server has closed the other, which was silent for long
    connection.send(GET % b"/metrics")
    metrics = connection.answer()[1].decode().split("\n")
    shown = [line for line in metrics if not line.startswith("#") and any(word in line for word in ("preemptions", "prefix_cache", "accepted", "draft_tokens"))]
    print(f"{count} requests ({called} with calls), {clients} clients, {seconds:g} s: {counts[0]} answers, {len(wrong)} differ from those alone")
    print("\n".join(shown))
    for which, expected, got in wrong[:3]:
        print(f"request {which}: {json.dumps(bodies[which])}\n  alone {expected}\n  among others {got}")
    return bool(wrong)


if __name__ == "__main__":
    numbers = [float(word) for word in sys.argv[2:]] + [60, 64, 60][len(sys.argv) - 2:]
    sys.exit(main(sys.argv[1].rstrip("/"), numbers[0], int(numbers[1]), int(numbers[2])))
