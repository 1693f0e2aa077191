#!/usr/bin/env python3
"""OpenAI's own client (PyPI: openai; 3.54.0 was used), unmodified, against a running `fidelio serve`.

    fidelio serve models/quill-26m --port 8000 &
    python3 -m venv venv && venv/bin/pip install openai && venv/bin/python tools/check_serve.py http://127.0.0.1:8000

Exits 1 at the first thing that is not as it should be."""
import asyncio
import sys

import openai


def texts(choices):
    return [choice.text for choice in choices]


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
    assert chunks[-1].usage == answer.usage
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
    print(f"openai {openai.__version__}: the client and {model} understand each other ({answer.choices[0].message.content!r})")


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"))
