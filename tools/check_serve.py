#!/usr/bin/env python3
"""OpenAI's, Anthropic's and Ollama's own clients (PyPI: openai, anthropic, ollama; 3.57.0, 2.14.0 and 0.6.3 were used), unmodified, against a
running `fidelio serve`.

    fidelio serve models/quill-26m --port 8000 &
    python3 -m venv venv && venv/bin/pip install openai anthropic ollama && venv/bin/python tools/check_serve.py http://127.0.0.1:8000

Exits 1 at the first thing that is not as it should be."""
import asyncio
import json
import sys

import anthropic
import ollama
import openai
import pydantic


def texts(choices):
    return [choice.text for choice in choices]


SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
          "required": ["name", "age"], "additionalProperties": False}


def check_forms(client, model):
    chat = dict(model=model, messages=[{"role": "user", "content": "Who is it?"}], temperature=0, max_tokens=300)
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    person = json.loads(client.chat.completions.create(**chat, response_format=form).choices[0].message.content)
    assert set(person) == {"name", "age"} and 0 <= person["age"] <= 120 and len(person["name"]) <= 20, person
    tools = [{"type": "function", "function": {"name": "find", "description": "finds somebody", "parameters": SCHEMA}}]
    call = client.chat.completions.create(**chat, tools=tools, tool_choice="required").choices[0]
    assert call.finish_reason == "tool_calls" and call.message.tool_calls[0].function.name == "find", call
    assert set(json.loads(call.message.tool_calls[0].function.arguments)) == {"name", "age"}
    top = client.chat.completions.create(**chat, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert all(len(t.top_logprobs) == 3 and t.top_logprobs[0].logprob == t.logprob for t in top)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=120)


STREAMED = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added", "response.output_text.delta",
            "response.output_text.done", "response.content_part.done", "response.output_item.done"]


def lasting(response):
    """Of a response what its request alone decides."""
    return [(item.type, [part.text for part in item.content]) if item.type == "message" else (item.type, item.name, item.arguments)
            for item in response.output if item.type != "reasoning"]


def check_responses_streamed(client, asked, whole):
    events = list(client.responses.create(**asked, stream=True))
    kinds = [event.type for event in events]
    said = max(i for i, kind in enumerate(kinds) if kind == "response.output_item.added")  # what was thought stands before it
    kinds = kinds[:2] + kinds[said:]
    assert [kind for i, kind in enumerate(kinds) if kind not in kinds[:i]] == [*STREAMED, "response." + whole.status], kinds
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text, (text, whole.output_text)
    with client.responses.stream(**asked, text_format=Person) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert isinstance(final.output_parsed, Person) and snapshots[-1] == final.output_text, final


def check_responses_tools(client, model):
    tool = openai.pydantic_function_tool(Person, name="find")
    asked = dict(model=model, instructions="Be brief.", temperature=0, max_output_tokens=300, tools=[{"type": "function", **tool["function"]}])
    turns = [{"role": "user", "content": "Find somebody."}]
    called = client.responses.parse(**{**asked, "tools": [tool]}, input=turns, tool_choice="required")
    call = called.output[-1]
    assert call.type == "function_call" and call.name == "find" and isinstance(call.parsed_arguments, Person), called
    with client.responses.stream(**asked, input=turns, tool_choice={"type": "function", "name": "find"}) as stream:
        kinds = [event.type for event in stream]
        assert lasting(stream.get_final_response()) == lasting(called)
    begun = max(i for i, kind in enumerate(kinds) if kind == "response.output_item.added")  # what was thought stands before it
    assert kinds[begun:-1] == ["response.output_item.added", "response.function_call_arguments.delta", "response.function_call_arguments.done", "response.output_item.done"], kinds
    # The items of an answer are given back as they came, and what the function gave behind them.
    turns += [item.to_dict() for item in called.output] + [{"type": "function_call_output", "call_id": call.call_id, "output": "found"}]
    answer = client.responses.create(**asked, input=turns, tool_choice="none")
    assert answer.output[-1].type == "message" and answer.usage.input_tokens > called.usage.input_tokens
    turns += [item.to_dict() for item in answer.output] + [{"role": "user", "content": [{"type": "input_text", "text": "And now?"}]}]
    assert client.responses.create(**asked, input=turns, tool_choice="none").usage.input_tokens > answer.usage.input_tokens


def check_responses(client, model):
    asked = dict(model=model, input="What is 3 + 4?", instructions="Be brief.", temperature=0, max_output_tokens=200)
    whole = client.responses.create(**asked, include=["message.output_text.logprobs"], top_logprobs=2, metadata={"a": "b"}, store=True)
    assert whole.status in ("completed", "incomplete") and whole.output[-1].role == "assistant" and whole.store is False, whole
    assert whole.metadata == {"a": "b"} and whole.instructions == "Be brief." and whole.max_output_tokens == 200
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    tokens = whole.output[-1].content[0].logprobs
    assert len(tokens) == whole.usage.output_tokens - whole.usage.output_tokens_details.reasoning_tokens
    assert all(len(t.top_logprobs) == 2 and t.top_logprobs[0].logprob == t.logprob for t in tokens)
    chat = client.chat.completions.create(model=model, messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 3 + 4?"}], temperature=0, max_tokens=200)
    assert whole.output_text == chat.choices[0].message.content, (whole.output_text, chat)
    check_responses_streamed(client, asked, whole)
    parsed = client.responses.parse(**asked, text_format=Person)
    assert parsed.status == "completed" and isinstance(parsed.output_parsed, Person), parsed
    check_responses_tools(client, model)
    for wrong, kind, word in (({"previous_response_id": whole.id}, openai.BadRequestError, "previous_response_id"),
                              ({"tools": [{"type": "web_search"}]}, openai.BadRequestError, "web_search"), ({"model": "no such"}, openai.NotFoundError, "no such")):
        try:
            client.responses.create(**{**asked, **wrong})
            raise AssertionError(f"{wrong} was taken")
        except kind as error:
            assert word in error.body["message"], error.body
    for lost in (client.responses.retrieve, client.responses.delete, client.responses.cancel, client.responses.input_items.list):
        try:
            lost(whole.id)
            raise AssertionError("a response was stored")
        except openai.NotFoundError as error:
            assert "stored" in error.body["message"], error.body


def check_anthropic(url, model):
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120)
    asked = dict(model=model, max_tokens=24, extra_body={"temperature": 0}, system="Be brief.", messages=[{"role": "user", "content": "What is 3 + 4?"}])
    message = client.messages.create(**asked)
    assert message.role == "assistant" and message.stop_reason in ("end_turn", "max_tokens"), message
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "".join(b.text for b in message.content if b.type == "text") and final.usage.output_tokens == message.usage.output_tokens
    assert [b.model_dump() for b in final.content] == [b.model_dump() for b in message.content]
    counted = client.messages.count_tokens(model=model, system="Be brief.", messages=asked["messages"])
    assert counted.input_tokens == message.usage.input_tokens
    tool = {"name": "find", "description": "finds somebody", "input_schema": SCHEMA}
    call = client.messages.create(**{**asked, "max_tokens": 300}, tools=[tool], tool_choice={"type": "any"})
    assert call.stop_reason == "tool_use" and call.content[-1].name == "find" and set(call.content[-1].input) == {"name", "age"}, call
    try:
        client.messages.create(**{**asked, "extra_body": {"temperature": -1}})
        raise AssertionError("a negative temperature was taken")
    except anthropic.BadRequestError as error:
        assert error.body["error"]["type"] == "invalid_request_error", error.body
    print(f"anthropic {anthropic.__version__}: the client and {model} understand each other")


def check_ollama(url, model, chat_of_openai):
    client = ollama.Client(host=url, timeout=120)
    listed = client.list().models
    assert [m.model for m in listed] == [model + ":latest"] and listed[0].size > 0 and listed[0].details.family, listed
    name = listed[0].model
    shown = client.show(name)
    assert "completion" in shown.capabilities and shown.modelinfo["general.architecture"] == listed[0].details.family, shown
    assert client.ps().models[0].model == name
    messages = [{"role": "user", "content": "What is 3 + 4?"}]
    asked = dict(model=name, messages=messages, options={"temperature": 0, "num_predict": 24, "num_ctx": 65536}, keep_alive="5m")
    whole = client.chat(**asked)
    assert whole.done and whole.done_reason in ("stop", "length") and whole.eval_count > 0 and whole.prompt_eval_count > 0, whole
    assert 0 < whole.prompt_eval_duration < whole.total_duration and whole.created_at, whole
    assert whole.message.content == chat_of_openai(messages), whole
    pieces = list(client.chat(**asked, stream=True))
    assert "".join(p.message.content or "" for p in pieces) == whole.message.content and pieces[-1].done and not pieces[0].done
    assert pieces[-1].eval_count == whole.eval_count and pieces[-1].done_reason == whole.done_reason
    raw = client.generate(model=name, prompt="The package", raw=True, options={"temperature": 0, "num_predict": 8})
    assert raw.response == "".join(p.response for p in client.generate(model=name, prompt="The package", raw=True, stream=True, options={"temperature": 0, "num_predict": 8}))
    person = json.loads(client.chat(**{**asked, "options": {"temperature": 0, "num_predict": 300}}, format=SCHEMA).message.content)
    assert set(person) == {"name", "age"}, person
    json.loads(client.generate(model=name, prompt="An object", format="json", options={"temperature": 0, "num_predict": 400}).response)
    assert client.generate(model=name).done_reason == "load"
    for wrong, word in ((lambda: client.embed(name, "a"), "embeddings"), (lambda: client.pull("llama3"), "no others"), (lambda: client.chat("no such", messages), "no such"),
                        (lambda: client.generate(name, "a", images=[b"x"]), "images"), (lambda: client.chat(name, messages, options={"mirostat": 2}), "mirostat")):
        try:
            wrong()
            raise AssertionError(f"{word} was taken")
        except ollama.ResponseError as error:
            assert word in error.error, error.error
    print(f"ollama: the client and {model} understand each other")


def main(url):
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120)
    model = client.models.list().data[0].id
    assert client.models.retrieve(model).id == model
    greedy = dict(model=model, prompt="The package", max_tokens=16, temperature=0)
    whole = client.completions.create(**greedy)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    streamed = "".join(c.choices[0].text for c in client.completions.create(**greedy, stream=True) if c.choices)
    assert streamed == whole.choices[0].text, (streamed, whole.choices[0].text)
    scored = client.completions.create(**greedy, logprobs=0).choices[0]
    assert scored.text == whole.choices[0].text
    assert len(scored.logprobs.token_logprobs) == whole.usage.completion_tokens
    assert all(x <= 0 for x in scored.logprobs.token_logprobs)

    sampled = dict(greedy, temperature=1, seed=7)
    assert texts(client.completions.create(**sampled, n=3).choices)[:1] == texts(client.completions.create(**sampled).choices)

    chat = dict(model=model, messages=[{"role": "user", "content": "What is 3 + 4?"}], temperature=0, max_tokens=24)
    answer = client.chat.completions.create(**chat, logprobs=True)
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].finish_reason in ("stop", "length")
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens
    chunks = list(client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True}))
    # (What was guessed, and what of the prompt was in the cache, is another time another.)
    counts = [(u.prompt_tokens, u.completion_tokens, u.total_tokens) for u in (chunks[-1].usage, answer.usage)]
    assert counts[0] == counts[1], counts
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == answer.choices[0].message.content

    for wrong, kind in (({"temperature": -1}, openai.BadRequestError), ({"model": "no such"}, openai.NotFoundError)):
        try:
            client.completions.create(**{**greedy, **wrong})
            raise AssertionError(f"{wrong} was taken")
        except kind as error:
            assert error.body["message"], error.body

    async def many():
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=300) as several:
            answers = await asyncio.gather(*(several.completions.create(**{**sampled, "seed": i}) for i in range(32)))
            alone = [await several.completions.create(**{**sampled, "seed": i}) for i in range(0, 32, 8)]
            assert texts(a.choices[0] for a in answers[::8]) == texts(a.choices[0] for a in alone)

    asyncio.run(many())
    check_forms(client, model)
    check_responses(client, model)
    check_anthropic(url, model)
    check_ollama(url, model, lambda messages: client.chat.completions.create(**{**chat, "messages": messages}).choices[0].message.content)
    print(f"openai {openai.__version__}: the client and {model} understand each other ({answer.choices[0].message.content!r})")


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"))
