"""A model for lm-evaluation-harness, which runs in its process:

    python -m fidelio.lm_eval run --model fidelio --model_args pretrained=FOLDER,draft=off --tasks arc_easy

It is the command `lm_eval` with one model more, since lm-eval looks for models in its own package alone. In a program
`import fidelio.lm_eval` does the same for `lm_eval.simple_evaluate(model="fidelio", ...)`. Arguments of the model are
those of fidelio.Model. Log-likelihoods and answers are those of `fidelio serve`.
"""
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Optional, Sequence, Tuple

from lm_eval import utils  # type: ignore[import-untyped,import-not-found,unused-ignore]
from lm_eval.api.model import TemplateLM  # type: ignore[import-untyped,import-not-found,unused-ignore]
from lm_eval.api.registry import register_model  # type: ignore[import-untyped,import-not-found,unused-ignore]
from tqdm import tqdm  # type: ignore[import-untyped,import-not-found,unused-ignore]

from ._model import Model, Sampling

_AT_ONCE = 64  # Requests that are given to the model together.


@register_model("fidelio")  # type: ignore[misc,unused-ignore]
class FidelioLM(TemplateLM):  # type: ignore[misc,unused-ignore]
    def __init__(self, pretrained: str, batch_size: Any = None, max_batch_size: Any = None, device: Optional[str] = None,
                 max_gen_toks: int = 256, **options: Any) -> None:
        super().__init__()
        self.model = Model(pretrained, device or "cpu", **options)
        self._longest_answer = int(max_gen_toks)
        self._added = self.model.tokenize("")  # The tokens that the tokenizer puts before a text, if any.

    @property
    def eot_token_id(self) -> int:
        return self.model.stop_ids[0]

    @property
    def prefix_token_id(self) -> int:
        return self._added[0] if self._added else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        return self.model.name

    def tok_encode(self, string: str, add_special_tokens: Optional[bool] = None, **_: Any) -> List[int]:
        ids = self.model.tokenize(string, special=add_special_tokens is not False)
        twice = add_special_tokens is None and self._added and ids[1:1 + len(self._added)] == self._added
        return ids[len(self._added):] if twice else ids

    def apply_chat_template(self, chat_history: List[Dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self.model.render(chat_history, add_generation_prompt=add_generation_prompt)

    def _loglikelihood_tokens(self, requests: Sequence[Tuple[Any, List[int], List[int]]], disable_tqdm: bool = False,
                              **_: Any) -> List[Tuple[float, bool]]:
        most = self.model.context - 1
        found = []
        for begin in tqdm(range(0, len(requests), _AT_ONCE), desc="log-likelihoods", disable=disable_tqdm):
            some = requests[begin:begin + _AT_ONCE]
            scores = self.model.score([(request[1] + request[2])[-most:] for request in some])
            for request, score in zip(some, scores):
                count = min(len(request[2]), len(score.logprobs))
                found.append((sum(score.logprobs[-count:]) if count else 0.0, all(score.greedy[-count:])))
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> List[float]:
        sums = []
        for request in requests:
            windows = utils.get_rolling_token_windows(token_list=self.tok_encode(request.args[0], add_special_tokens=False),
                                                      prefix_token=self.prefix_token_id, max_seq_len=self.model.context - 2,
                                                      context_len=1)
            pairs = [(None, *utils.make_disjoint_window(window)) for window in windows]
            sums.append(sum(log for log, _ in self._loglikelihood_tokens(pairs, disable_tqdm=True)))
        return sums

    def _answer(self, request: Any) -> str:
        context, given = request.args
        options: Dict[str, Any] = dict(given)
        until = options.pop("until", None) or []
        stop = [until] if isinstance(until, str) else list(until)
        longest = int(options.pop("max_gen_toks", self._longest_answer))
        temperature = float(options.pop("temperature", 0)) if options.pop("do_sample", True) else 0.0
        ids = self.tok_encode(context)[-max(1, self.model.context - longest):]
        return self.model.generate([ids], Sampling(temperature=temperature), max_tokens=longest,
                                   stop=[text for text in stop if text], **options)[0].text

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> List[str]:
        with ThreadPoolExecutor(_AT_ONCE) as threads:  # The model computes the answers of all threads side by side.
            answers = threads.map(self._answer, requests)
            return list(tqdm(answers, total=len(requests), desc="answers", disable=disable_tqdm))


def main() -> None:
    from lm_eval.__main__ import cli_evaluate  # type: ignore[import-untyped,import-not-found,unused-ignore]
    cli_evaluate()


if __name__ == "__main__":
    main()
