"""Options as words of a command line."""
import os
from typing import Any, List, Mapping, Union

PathLike = Union[str, "os.PathLike[str]"]


def words_of(model: PathLike, options: Mapping[str, Any]) -> List[str]:
    """The model and its options as the program takes them: ear=0.98 is --ear=0.98, dry_run=True is --dry-run, for_="vllm"
    is --for=vllm, and a list repeats its option. None and False leave an option out."""
    words = [os.fspath(model)]
    for name, value in options.items():
        option = "--" + name.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(option)
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            words.append(f"{option}={os.fspath(one) if isinstance(one, os.PathLike) else one}")
    return words
