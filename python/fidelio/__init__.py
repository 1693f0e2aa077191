"""fidelio makes open-weight language models smaller and faster and proves how little they changed.

    import fidelio
    fidelio.compress("models/quill-1m", "quill-98", ear=0.98)       # a search, and a certificate
    with fidelio.Model("quill-98") as model:
        print(model.generate("The package contains").text)
        print(model.certificate)

`Model` runs in this process. The functions that make and measure files (`compress`, `certify`, `evaluate`, `quantize`,
`export`, `inspect`) run the program `fidelio` as a child process and have its options. Whatever is refused raises
`fidelio.Error` with the program's message. docs/python.md has more examples.
"""
from ._library import Error, version
from ._model import Answer, Generation, Model, Sampling, Score
from ._report import Certificate, Report
from ._verbs import certify, compress, evaluate, export, inspect, quantize

__version__ = version()
__all__ = ["Answer", "Certificate", "Error", "Generation", "Model", "Report", "Sampling", "Score", "certify",
           "compress", "evaluate", "export", "inspect", "quantize"]
