"""What a script left in writing, if it caught its exception itself before it exited."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from ddoctor.analysis import printed_tracebacks
from ddoctor.evidence.training import TRACEBACK, Source
from ddoctor.recorder import places
from ddoctor.recorder.script import Ending

# The exit code of argparse, click and fire for wrong arguments, and the line that they print.
USAGE = 2
WRONG = re.compile(r"^(?:[^\s:]+: )?error: .+", re.IGNORECASE | re.MULTILINE)
# threading.excepthook
THREAD = re.compile(r"^Exception in thread .+:$")
MOST_LINES = 500
# torch/distributed/elastic/multiprocessing/errors/error_handler.py
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


def added(ending: Ending, code: int, printed: str, began: float) -> Ending:
    """The end of a script with what it left in writing.

    ``code``: its exit code. ``printed``: its stderr. ``began``: its start, in seconds since 1970.
    """
    if code == USAGE and (wrong := WRONG.findall(printed)):
        return Ending(message=wrong[-1], stack=ending.stack)
    if code <= 0 or ending.exception or ending.message:
        return ending
    texts: tuple[tuple[Source, str], ...] = (
        ("TORCHELASTIC_ERROR_FILE", _error_file(began)),
        ("stderr", printed),
    )
    for source, text in texts:
        if found := printed_tracebacks.last(text.splitlines(), places.of_user):
            stack = found.stack or ending.stack
            return replace(ending, **{**vars(found), "stack": stack}, source=source)
    return ending


def of_thread(printed: str) -> str:
    """The last exception that ended a thread in the user's code, with its line; empty: none."""
    lines = printed.splitlines()
    begins = [n for n, line in enumerate(lines[:-1], 1) if THREAD.match(line)]
    if not begins or lines[begins[-1]] != TRACEBACK:
        return ""
    block = lines[begins[-1] : begins[-1] + MOST_LINES]
    ends = block.index(TRACEBACK, 1) if TRACEBACK in block[1:] else None
    found = printed_tracebacks.last(block[:ends], places.of_user)
    frame = next((one for one in reversed(found.stack if found else ()) if one.of_user), None)
    if found is None or frame is None:
        return ""
    said = found.message.partition("\n")[0]
    place = f"{Path(frame.file).name}:{frame.line} in {frame.function}"
    return f"{f'{found.exception}: {said}'.removesuffix(': ')} at {place}"


def _error_file(began: float) -> str:
    """The traceback in it; empty: there is none, or it is that of an earlier run."""
    path = Path(os.environ.get(ERROR_FILE) or os.devnull)
    with suppress(OSError, ValueError, LookupError, TypeError):
        if path.stat().st_mtime >= began:
            return str(json.loads(path.read_text())["message"]["extraInfo"]["py_callstack"])
    return ""
