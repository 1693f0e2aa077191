"""Models of the Hugging Face hub: fetching them, and what their cards say about a certificate."""
import os
import tempfile
from typing import Any

from ._library import Error
from ._options import PathLike
from ._verbs import certify


def card(model: PathLike, reference: PathLike, **options: Any) -> str:
    """A few lines of Markdown about a certified model, for a card of your own. The certificate is measured again, beside
    the original in `reference`; options are those of `fidelio.certify`. Raises Error for a model without a certificate."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "block.md")
        certify(model, reference, card_block=path, **options)
        with open(path, encoding="utf-8") as file:
            return file.read()


def fetch(name: str, **options: Any) -> str:
    """The folder of a model of the hub, as "org/name", which is downloaded if it is not there. Needs huggingface_hub, and
    options are those of its snapshot_download."""
    try:
        from huggingface_hub import snapshot_download  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as error:
        raise Error(f"{name} needs huggingface_hub: pip install huggingface_hub; or download it by hand: "
                    f"hf download {name} --local-dir FOLDER", -1) from error
    return str(snapshot_download(name, **options))
