"""Threads that ask all the time whether there is something to do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import endings
from ddoctor.evidence.frames import Frame
from ddoctor.models import Fix

POLLS = re.compile(
    r"_nowait\(|block=False|\.get\(False|\.poll\(|\.(?:empty|qsize)\("
    # Less than ten milliseconds.
    r"|timeout=(?:0?\.00\d*|[\d.]+e-0?[3-9])\b"
    r"|\bsleep\((?:0|0?\.0|0?\.00\d*|[\d.]+e-0?[3-9])\)"
)
"""The text of a line that does not wait, or hardly."""


def sleeping(line: Frame) -> Iterator[Fix]:
    """Yield the fix for such a line, if it is one."""
    if POLLS.search(line.text):
        yield Fix.python(
            summary="let it sleep until there is something to do, and not ask all the time",
            paste="item = inbox.get(timeout=1)  # not get_nowait(), or a short timeout, in a loop",
            caution=endings.place(line),
        )
