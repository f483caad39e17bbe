"""What ddoctor says on stderr, also about an internal error, whatever stdout and stderr are."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress

STANDARD = (0, 1, 2)


def accept_any() -> None:
    """Replace characters that the console cannot show; read and write nothing where it is closed.

    Else a file opened later would take the number of stdout, and get what the script prints.
    """
    for number in STANDARD:
        try:
            os.fstat(number)
        except OSError:  # noqa: PERF203 - it is closed
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def say(line: str) -> None:
    """Write a line to stderr at once, if that can be written: a full disk must not end the work."""
    # What stays in Python's buffer would fail again at its exit, and change the exit code.
    with suppress(OSError):
        sys.stderr.flush()
        os.write(sys.stderr.fileno(), f"{line}\n".encode(sys.stderr.encoding, errors="replace"))


def drop_stdout() -> None:
    """Write the rest of stdout to nowhere: its reader has gone, or its disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def internal_error(error: Exception) -> str:
    """Name an error of ddoctor's own, keep its traceback in a file, and say where it is."""
    text = " ".join(str(error).split())
    return f"internal error: {type(error).__name__}: {text}; {_kept_traceback()}"


def _kept_traceback() -> str:
    import traceback
    from tempfile import NamedTemporaryFile

    from ddoctor.evidence import redaction

    try:
        with NamedTemporaryFile("w", prefix="ddoctor-", suffix=".traceback", delete=False) as file:
            file.write(redaction.text(traceback.format_exc()))
    except OSError:
        return "its traceback could not be written"
    return f"please report it with {file.name}"
