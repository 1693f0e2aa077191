"""Models that run in this process."""
import json
import weakref
from dataclasses import asdict, dataclass, field
from typing import (TYPE_CHECKING, Any, Dict, Iterator, List, Literal, Mapping, Optional, Sequence, Union, cast,
                    overload)

from . import _library
from ._library import Error, Pulled
from ._options import PathLike, words_of
from ._report import Certificate

if TYPE_CHECKING:
    import numpy

Prompt = Union[str, Sequence[int]]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. The default is greedy, so that an answer is always the same.

    temperature: 0 takes the likeliest token; top_k: 0 keeps all; top_p, min_p: probabilities; repetition_penalty: 1 is
    none; presence_penalty, frequency_penalty: subtracted from logits; seed: the same seed gives the same answer;
    logit_bias: added to the logits of these token ids.
    """
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def fields(self) -> Dict[str, Any]:
        fields = asdict(self)
        fields["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        return fields


@dataclass(frozen=True)
class Generation:
    """One continuation. finish_reason: "stop" (an end of the text, or a stop string, then in `stop`) or "length" (the
    limit, or the end of the context); tokens: how many were generated; answer: the server's whole answer."""
    text: str
    finish_reason: str
    stop: Optional[str]
    tokens: int
    answer: Mapping[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Answer:
    """One answer of a chat. text: what is said; thought: what was thought before, or ""; tool_calls: as OpenAI has
    them; finish_reason: "stop", "length" or "tool_calls"; message: what is appended to the messages for the next turn;
    tokens: how many were generated; answer: the server's whole answer."""
    text: str
    thought: str
    tool_calls: List[Dict[str, Any]]
    finish_reason: str
    message: Dict[str, Any] = field(repr=False)
    tokens: int = 0
    answer: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Score:
    """Of each token of a text but the first: logprobs, natural logarithms of its probability; greedy: whether it is the
    likeliest."""
    logprobs: List[float]
    greedy: List[bool]


def _refusal(body: bytes, status: int) -> Error:
    try:
        return Error(str(json.loads(body)["error"]["message"]), status)
    except (ValueError, KeyError, TypeError):
        return Error(body.decode("utf-8", "replace"), status)


def _events(pulled: Pulled) -> Iterator[Dict[str, Any]]:
    """The JSON of a stream of server-sent events."""
    while True:
        piece = pulled.piece()
        if piece is None:
            return
        if pulled.status() != 200:
            raise _refusal(piece, pulled.status())
        for event in piece.split(b"\n\n"):
            if not event.startswith(b"data: ") or event == b"data: [DONE]":
                continue
            value = json.loads(event[len(b"data: "):])
            if "error" in value:
                raise Error(value["error"]["message"], 500)
            yield value


def _is_ids(prompt: Any) -> bool:
    return not isinstance(prompt, str) and len(prompt) > 0 and not isinstance(prompt[0], (str, list, tuple))


class Model:
    """A model that is loaded into this process and answers as `fidelio serve` does, with the same tokens.

    path: a folder of Hugging Face or fidelio, or a .gguf file. device: "cpu", "cuda" or "cuda:1". activations: "a16"
    (what serves), "f32" (exact) or "a8". kv: the format of the cache, "f16", "f32", "bf16", "i8" or "i4x2"; None is f16,
    and f32 with activations of f32. draft: "auto" (what `fidelio draft` chose, or what the weights allow), "off",
    "lookup", "mtp", or as `fidelio serve --draft` has it; drafts change no answer. Further options are those of
    `fidelio serve` about the model, as max_sequences=64, cache_tokens=16384, threads=4.

    Any thread may call any method, and answers of several threads are computed side by side. A model does not survive
    os.fork(): in the child its methods raise Error, and the child opens one of its own. close(), or leaving a `with`
    block, gives the weights back; calls that wait then raise Error.
    """

    def __init__(self, path: PathLike, device: str = "cpu", *, activations: str = "a16", kv: Optional[str] = None,
                 draft: str = "auto", **options: Any) -> None:
        options = {"device": device, "activations": activations, "kv": kv, "draft": draft, **options}
        self._handle = _library.open_model(words_of(path, options))
        self._end = weakref.finalize(self, _library.library.fidelio_free, self._handle)
        self._about: Dict[str, Any] = json.loads(_library.about(self._handle))

    def close(self) -> None:
        """Ends the model. Calls that wait for it in other threads raise Error."""
        _library.checked(_library.library.fidelio_close(self._handle))

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<fidelio.Model {self.name}: {self.family}, context {self.context}, vocabulary {self.vocabulary}>"

    @property
    def name(self) -> str:
        return str(self._about["name"])

    @property
    def family(self) -> str:
        return str(self._about["family"])

    @property
    def context(self) -> int:
        """The most tokens of a prompt and its answer together."""
        return int(self._about["context"])

    @property
    def vocabulary(self) -> int:
        """The number of logits of a position."""
        return int(self._about["vocabulary"])

    @property
    def stop_ids(self) -> List[int]:
        """The token ids at which an answer ends."""
        return list(self._about["stop_ids"])

    @property
    def about(self) -> Dict[str, Any]:
        """All that the library says about the model (fidelio_about in src/library/fidelio.h)."""
        return dict(self._about)

    @property
    def certificate(self) -> Optional[Certificate]:
        """What was certified about the model when it was compressed, or None."""
        claims = self._about["certificate"]
        return None if claims is None else Certificate(claims, self._about["in_words"])

    def tokenize(self, text: str, *, special: bool = True) -> List[int]:
        """The token ids of a text, with those that the tokenizer adds by itself (as <s>) if `special`."""
        answer = self.post("/tokenize", {"prompt": text, "add_special_tokens": special})
        return cast(List[int], answer["tokens"])

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        return cast(str, self.post("/detokenize", {"tokens": [int(token) for token in ids]})["prompt"])

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Optional[Sequence[Mapping[str, Any]]] = None,
               **fields: Any) -> str:
        """The prompt that the model's chat template makes of messages and tools."""
        body = {"messages": list(messages), **({"tools": list(tools)} if tools else {}), **fields}
        return self.detokenize(self.post("/tokenize", body)["tokens"])

    def logits(self, ids: Sequence[int]) -> "numpy.ndarray[Any, Any]":
        """The logits of every position: float32 (len(ids), vocabulary), before softmax, bit for bit those of `fidelio
        logits`. The array is a view of the library's memory, which is freed with the last array over it. Needs NumPy."""
        try:
            import numpy
        except ImportError as error:
            raise Error("logits() needs NumPy: pip install numpy", -1) from error
        return numpy.asarray(_library.logits(self._handle, [int(token) for token in ids]))

    @overload
    def generate(self, prompts: str, sampling: Union[Sampling, str, None] = ..., *, max_tokens: int = ...,
                 stop: Sequence[str] = ..., stream: Literal[False] = ..., **fields: Any) -> Generation: ...

    @overload
    def generate(self, prompts: Sequence[Prompt], sampling: Union[Sampling, str, None] = ..., *, max_tokens: int = ...,
                 stop: Sequence[str] = ..., stream: Literal[False] = ..., **fields: Any) -> List[Generation]: ...

    @overload
    def generate(self, prompts: str, sampling: Union[Sampling, str, None] = ..., *, max_tokens: int = ...,
                 stop: Sequence[str] = ..., stream: Literal[True], **fields: Any) -> Iterator[str]: ...

    def generate(self, prompts: Any, sampling: Union[Sampling, str, None] = None, *, max_tokens: int = 256,
                 stop: Sequence[str] = (), stream: bool = False, **fields: Any) -> Any:
        """Continues a text, a list of texts, or lists of token ids; all of a list are computed side by side.

        sampling: a Sampling; None is greedy, and "recommended" is as the model's generation_config.json says. max_tokens:
        the longest answer; stop: the answer also ends before one of these texts. Further fields are those of
        /v1/completions (docs/serving.md), as regex="[0-9]+" or logprobs=3. Returns a Generation for one text and a list
        for a list. With stream=True it takes one text and returns an iterator over pieces of its continuation.
        """
        alone = isinstance(prompts, str) or _is_ids(prompts)
        body = {"max_tokens": max_tokens, "stop": list(stop), "stream": stream, **_sampled(sampling), **fields}
        if stream:
            if not alone:
                raise Error("generate: stream=True takes one prompt, got a list; stream each in a thread of its own", -1)
            return self._stream("/v1/completions", {"prompt": _plain(prompts), **body})
        every = [prompts] if alone else list(prompts)
        under_way = [self._ask("/v1/completions", {"prompt": _plain(prompt), **body}) for prompt in every]
        made = [_generation(_whole(pulled)) for pulled in under_way]
        return made[0] if alone else made

    def score(self, prompts: Sequence[Prompt]) -> List[Score]:
        """How likely each token of these texts, or lists of token ids, is after those before it. They are computed side
        by side, and each is shorter than the context."""
        body = {"echo": True, "logprobs": 1, "max_tokens": 0}
        under_way = [self._ask("/v1/completions", {"prompt": _plain(prompt), **body}) for prompt in prompts]
        scores = []
        for pulled in under_way:
            said = _whole(pulled)["choices"][0]["logprobs"]
            logs = said["token_logprobs"][1:]
            best = [max(top.values()) for top in said["top_logprobs"][1:]]
            scores.append(Score(logs, [log >= most for log, most in zip(logs, best)]))
        return scores

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Optional[Sequence[Mapping[str, Any]]] = None,
             sampling: Union[Sampling, str, None] = None, **fields: Any) -> Answer:
        """Answers a conversation, a list of {"role": ..., "content": ...} as OpenAI has it, by the model's chat template.

        tools: functions that the model may call, as OpenAI has them; what it calls is in the answer's tool_calls.
        sampling: as for generate(). Further fields are those of /v1/chat/completions (docs/serving.md), as
        max_tokens=200, response_format={...} or reasoning_effort="low".
        """
        body = self._chat_body(messages, tools, sampling, fields)
        answer = _whole(self._ask("/v1/chat/completions", body))
        choice = answer["choices"][0]
        message = choice["message"]
        return Answer(message.get("content") or "", message.get("reasoning_content") or "",
                      message.get("tool_calls") or [], choice["finish_reason"], message,
                      answer["usage"]["completion_tokens"], answer)

    def chat_stream(self, messages: Sequence[Mapping[str, Any]], tools: Optional[Sequence[Mapping[str, Any]]] = None,
                    sampling: Union[Sampling, str, None] = None, **fields: Any) -> Iterator[Dict[str, Any]]:
        """As chat(), but an iterator over OpenAI's deltas as they come: {"content": ...}, {"reasoning_content": ...} or
        {"tool_calls": [...]}."""
        body = self._chat_body(messages, tools, sampling, fields)
        for event in _events(self._ask("/v1/chat/completions", {**body, "stream": True})):
            for choice in event["choices"]:
                if choice["delta"]:
                    yield choice["delta"]

    def post(self, path: str, body: Mapping[str, Any]) -> Dict[str, Any]:
        """Asks any route of the server (docs/serving.md) with this body, and returns the answer's JSON."""
        return _whole(self._ask(path, body))

    @staticmethod
    def _chat_body(messages: Sequence[Mapping[str, Any]], tools: Optional[Sequence[Mapping[str, Any]]],
                   sampling: Union[Sampling, str, None], fields: Mapping[str, Any]) -> Dict[str, Any]:
        body = {"messages": [dict(message) for message in messages], **_sampled(sampling), **fields}
        if tools:
            body["tools"] = [dict(tool) for tool in tools]
        return body

    def _ask(self, path: str, body: Mapping[str, Any]) -> Pulled:
        try:
            text = json.dumps(body, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise Error(f"{path}: a value has no form in JSON: {error}", -1) from error
        return Pulled(self._handle, "POST", path, text.encode("utf-8", "surrogatepass"))

    def _stream(self, path: str, body: Mapping[str, Any]) -> Iterator[str]:
        for event in _events(self._ask(path, body)):
            for choice in event["choices"]:
                if choice["text"]:
                    yield choice["text"]


def _sampled(sampling: Union[Sampling, str, None]) -> Dict[str, Any]:
    if sampling == "recommended":
        return {}
    if sampling is not None and not isinstance(sampling, Sampling):
        raise Error(f'sampling: expected a fidelio.Sampling, None or "recommended", got {sampling!r}', -1)
    return (sampling or Sampling()).fields()


def _plain(prompt: Prompt) -> Union[str, List[int]]:
    return prompt if isinstance(prompt, str) else [int(token) for token in prompt]


def _whole(pulled: Pulled) -> Dict[str, Any]:
    body = pulled.whole()
    if pulled.status() != 200:
        raise _refusal(body, pulled.status())
    return cast(Dict[str, Any], json.loads(body))


def _generation(answer: Dict[str, Any]) -> Generation:
    choice = answer["choices"][0]
    return Generation(choice["text"], choice["finish_reason"], choice.get("stop_reason"),
                      answer["usage"]["completion_tokens"], answer)
