"""What any console can show, and what ddoctor says there of an error of its own."""

from __future__ import annotations

import io
import os
import sys


def accept_any() -> None:
    """Replace characters that the console cannot show; write nothing to a closed stdout."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def internal_error(error: Exception) -> str:
    """Name an error of ddoctor's own, keep its traceback in a file, and say where it is."""
    return f"internal error: {type(error).__name__}: {error}; {_kept_traceback()}"


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
