"""The functions of libfidelio (src/library/fidelio.h), called by ctypes, which releases the GIL during each call."""
import ctypes
import logging
import os
from typing import Any, Callable, List, Optional, Sequence, Tuple

log = logging.getLogger("fidelio")

OK, WAIT, END = 0, 1, 2
PATIENCE_MS = 100  # Python can act on Ctrl-C as often as this.


class Error(Exception):
    """What fidelio refuses, or cannot do. Its text is the program's message: it names the thing, what was expected,
    what was found and the remedy. `code` is the program's exit status, an answer's HTTP status, or a negative
    fidelio_result (src/library/fidelio.h)."""
    __module__ = "fidelio"

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def place_of(name: str) -> str:
    """The path of the program or the library: in the package, or in the build folder of the source around it."""
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.join(here, "bin", name), os.path.join(os.path.dirname(os.path.dirname(here)), "build", name)]
    for path in places:
        if os.path.exists(path):
            return path
    raise Error(f"{name} is not there; expected {places[0]} or, beside the source, {places[1]}: install the wheel "
                "again, or build it by `./do build`", -1)


_Handle = ctypes.c_void_p


def _load() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(place_of("libfidelio.so"))
    except OSError as error:
        raise ImportError(f"libfidelio cannot be loaded: {error}") from error
    text, result, size = ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t
    out = ctypes.POINTER(_Handle)
    floats = ctypes.POINTER(ctypes.c_void_p)
    signatures: List[Tuple[str, Any, Sequence[Any]]] = [
        ("fidelio_version", text, []),
        ("fidelio_message", text, []),
        ("fidelio_notes", text, []),
        ("fidelio_open", result, [ctypes.c_int, ctypes.POINTER(text), out]),
        ("fidelio_about", result, [_Handle, ctypes.POINTER(text)]),
        ("fidelio_ask", result, [_Handle, text, text, text, size, out]),
        ("fidelio_next", result, [_Handle, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(size)]),
        ("fidelio_status", ctypes.c_int, [_Handle]),
        ("fidelio_drop", None, [_Handle]),
        ("fidelio_logits", result, [_Handle, ctypes.c_void_p, ctypes.c_int64, floats, ctypes.POINTER(ctypes.c_int64)]),
        ("fidelio_release", None, [ctypes.c_void_p]),
        ("fidelio_close", result, [_Handle]),
        ("fidelio_free", None, [_Handle]),
    ]
    for name, restype, argtypes in signatures:
        function: Any = getattr(library, name)
        function.restype, function.argtypes = restype, argtypes
    return library


library = _load()


def text_of(raw: Optional[bytes]) -> str:
    return (raw or b"").decode("utf-8", "replace")


def version() -> str:
    return text_of(library.fidelio_version())


def checked(result: int) -> int:
    """The result, unless it is an error."""
    if result < 0:
        raise Error(text_of(library.fidelio_message()), result)
    return result


def pass_on_notes() -> None:
    """Gives what the library has noted to Python's logging, as logger "fidelio"."""
    for line in text_of(library.fidelio_notes()).splitlines():
        kind, _, words = line.partition(": ")
        log.log(logging.WARNING if kind == "warning" else logging.INFO, "%s", words)


def open_model(words: Sequence[str]) -> ctypes.c_void_p:
    raw = [word.encode("utf-8", "surrogateescape") for word in words]
    model = _Handle()
    result = library.fidelio_open(len(raw), (ctypes.c_char_p * len(raw))(*raw), ctypes.byref(model))
    checked(result)
    pass_on_notes()
    return model


def about(model: ctypes.c_void_p) -> str:
    text = ctypes.c_char_p()
    checked(library.fidelio_about(model, ctypes.byref(text)))
    return text_of(text.value)


class Pulled:
    """One answer, whose pieces are taken in this thread. Leaving it by an exception cancels the answer."""

    def __init__(self, model: ctypes.c_void_p, method: str, path: str, body: bytes) -> None:
        self._answer = _Handle()
        self._drop: Callable[[Any], None] = library.fidelio_drop  # It is there when modules are gone at exit.
        checked(library.fidelio_ask(model, method.encode(), path.encode(), body, len(body), ctypes.byref(self._answer)))

    def piece(self) -> Optional[bytes]:
        """The next piece, or None after the last one."""
        start, size = ctypes.c_void_p(), ctypes.c_size_t()
        while True:
            result = checked(library.fidelio_next(self._answer, PATIENCE_MS, ctypes.byref(start), ctypes.byref(size)))
            if result == END:
                return None
            if result == OK:
                return ctypes.string_at(start, size.value) if size.value else b""

    def whole(self) -> bytes:
        return b"".join(iter(self.piece, None))

    def status(self) -> int:
        return int(library.fidelio_status(self._answer))

    def drop(self) -> None:
        answer, self._answer = self._answer, _Handle()
        if answer:
            self._drop(answer)

    def __del__(self) -> None:
        self.drop()


class Floats:
    """Memory of the library that holds FP32 values (rows, columns). NumPy arrays over it keep it alive."""

    def __init__(self, address: int, rows: int, columns: int) -> None:
        self._address = address
        self._release: Callable[[Any], None] = library.fidelio_release
        self.__array_interface__ = {"version": 3, "typestr": "<f4", "shape": (rows, columns), "data": (address, False)}

    def __del__(self) -> None:
        self._release(self._address)


def logits(model: ctypes.c_void_p, ids: Sequence[int]) -> Floats:
    for token in ids:
        if not -2**31 <= token < 2**31:
            raise Error(f"logits: expected token ids of 32 bits, got {token}", -1)
    raw = (ctypes.c_int32 * len(ids))(*ids)
    start, columns = ctypes.c_void_p(), ctypes.c_int64()
    checked(library.fidelio_logits(model, raw, len(ids), ctypes.byref(start), ctypes.byref(columns)))
    return Floats(start.value or 0, len(ids), columns.value)
