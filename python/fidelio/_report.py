"""What verbs report, and certificates, as dictionaries that a notebook shows as tables."""
import html
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple


def _shown(value: Any) -> str:
    if isinstance(value, Mapping) and "value" in value and "ci95" in value:
        low, high = value["ci95"]
        ends = f" [{_shown(low)}, {_shown(high)}]" if low is not None and high is not None else ""
        return _shown(value["value"]) + ends
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(one)}" for name, one in value.items() if not isinstance(one, (Mapping, list)))
    if isinstance(value, list):
        return f"{len(value)} entries"
    return "not known" if value is None else str(value)


def _table(title: str, rows: Iterable[Tuple[str, str]]) -> str:
    body = "".join(f"<tr><th style='text-align:left'>{html.escape(name)}</th><td style='text-align:left'>"
                   f"{html.escape(text)}</td></tr>" for name, text in rows)
    return f"<table><caption>{html.escape(title)}</caption>{body}</table>"


class Certificate(Dict[str, Any]):
    """What was certified about a model, by the keys of docs/json.md ("The certificate"). `words` says the same in
    sentences: pairs of a title and a sentence. EAR is a share from 0 to 1, KL is in nats a token."""

    def __init__(self, claims: Mapping[str, Any], words: Sequence[Sequence[str]]) -> None:
        super().__init__(claims)
        self.words: List[Tuple[str, str]] = [(title, sentence) for title, sentence in words]

    @property
    def ear(self) -> float:
        """The overlap with the original's next-token probabilities, of all text."""
        return float(self["ear"]["value"])

    @property
    def met(self) -> bool:
        """Whether the target that was asked for holds."""
        return bool(self["met"])

    def __str__(self) -> str:
        return "\n".join(f"{title}: {sentence}" for title, sentence in self.words)

    def _repr_html_(self) -> str:
        figures = [(name, _shown(self[name])) for name in ("ear", "kl", "top1", "perplexity_ratio") if name in self]
        domains = self.get("domains")
        rows = [(f"EAR of {name}", _shown(domain.get("ear"))) for name, domain in domains.items()] \
            if isinstance(domains, Mapping) else []
        return _table("Certificate", figures + rows + list(self.words))


class Report(Dict[str, Any]):
    """What a verb reported, by the keys of docs/json.md. `verb` is its name."""

    def __init__(self, verb: str, report: Mapping[str, Any]) -> None:
        super().__init__(report)
        self.verb = verb

    def _repr_html_(self) -> str:
        rows = [(name, _shown(value)) for name, value in self.items() if name != "schema"]
        return _table(f"fidelio {self.verb}", rows)
