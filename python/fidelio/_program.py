"""The program fidelio as a child process, with its own memory and its own end."""
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import IO, Any, Dict, List, Mapping, NoReturn, Optional

from ._library import Error, log, place_of
from ._options import PathLike, words_of
from ._report import Report

_LAST_LINES = 200
_PATIENCE = 0.1  # seconds


def main() -> NoReturn:
    """Becomes the program, for the command `fidelio` of the wheel."""
    program = place_of("fidelio")
    os.execv(program, [program, *sys.argv[1:]])


class _Bar:
    """A bar of tqdm, if that is installed, which follows the lines of --progress json."""

    def __init__(self) -> None:
        from tqdm.auto import tqdm  # type: ignore[import-untyped,import-not-found,unused-ignore]
        self._bar = tqdm(total=100, bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}{postfix}")

    def follow(self, line: Mapping[str, Any]) -> None:
        stage = f"{line['stage_number']}/{line['stages']} {line['stage']}" if line.get("stages") else line.get("task")
        self._bar.set_description(str(stage), refresh=False)
        left = line.get("seconds_left")
        self._bar.set_postfix_str("" if left is None else f"about {left:.0f} s left", refresh=False)
        self._bar.n = round(100 * float(line.get("fraction") or 0), 1)
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()


def _bar_if_wanted(progress: Optional[bool]) -> Optional[_Bar]:
    if progress is False:
        return None
    try:
        return _Bar()
    except ImportError as error:
        if progress:
            raise Error("progress=True needs tqdm: pip install tqdm", -1) from error
        return None


def _progress_of(line: str) -> Optional[Dict[str, Any]]:
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "fraction" in value else None


def _message_of(lines: List[str]) -> str:
    """What the program says before it fails: from its name on, or all that stands before the hint to --help."""
    for at, line in enumerate(lines):
        if line.startswith("fidelio: "):
            return "\n".join([line[len("fidelio: "):], *lines[at + 1:]])
    return "\n".join(line for line in lines if line != "Run with --help for more information.")


def _run(command: List[str], bar: Optional[_Bar]) -> str:
    # The child has a session of its own, so that Ctrl-C reaches this process alone, which passes it on and waits: the
    # child removes what is half written, and says what is kept.
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             start_new_session=True, encoding="utf-8", errors="replace")
    assert child.stdout is not None and child.stderr is not None
    output: List[str] = []
    said: "queue.Queue[Optional[str]]" = queue.Queue()

    def hear(stream: IO[str]) -> None:
        for raw in stream:
            said.put(raw.rstrip("\n"))
        said.put(None)

    readers = [threading.Thread(target=lambda stream: output.append(stream.read()), args=(child.stdout,)),
               threading.Thread(target=hear, args=(child.stderr,))]
    for reader in readers:
        reader.start()
    lines: List[str] = []
    try:
        while True:
            try:
                line = said.get(timeout=_PATIENCE)  # Ctrl-C is noticed between two waits.
            except queue.Empty:
                continue
            if line is None:
                break
            progress = _progress_of(line)
            if progress is None:
                log.info("%s", line)
                lines = [*lines, line][-_LAST_LINES:]
            elif bar is not None:
                bar.follow(progress)
        status = child.wait()
    except BaseException:
        child.send_signal(signal.SIGINT)
        child.wait()
        raise
    finally:
        for reader in readers:
            reader.join()
        child.stdout.close()
        child.stderr.close()
    if status < 0:
        raise Error(f"the program ended by signal {-status} ({signal.Signals(-status).name})", status)
    if status != 0:
        raise Error(_message_of(lines), status)
    return output[0]


def run_verb(verb: str, model: PathLike, options: Mapping[str, Any], progress: Optional[bool],
             shows_progress: bool) -> Report:
    """Runs a verb and returns its report. Raises Error with the program's message and exit status."""
    command = [place_of("fidelio"), verb, *words_of(model, options), "--json=-"]
    bar = _bar_if_wanted(progress) if shows_progress else None
    if shows_progress:
        command.append("--progress=" + ("none" if bar is None else "json"))
    try:
        return Report(verb, json.loads(_run(command, bar)))
    finally:
        if bar is not None:
            bar.close()
