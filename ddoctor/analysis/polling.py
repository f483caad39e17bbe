"""Code that asks again and again whether there is something to do: all the time, or too seldom."""

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

SLEEPS = re.compile(r"\bsleep\(")


def sleeping(line: Frame) -> Iterator[Fix]:
    """Yield the fix for such a line, if it is one."""
    if POLLS.search(line.text):
        yield Fix.python(
            summary="let the thread sleep until there is something to do, and not ask all the time",
            paste="item = inbox.get(timeout=1)  # not get_nowait(), or a short timeout, in a loop",
            caution=endings.place(line),
        )


def sleeps(line: Frame | None) -> bool:
    """Whether it sleeps for a time, whatever comes meanwhile."""
    return line is not None and SLEEPS.search(line.text) is not None


def until_it_comes(line: Frame) -> Fix:
    """Wait for what is to come, and not for a time, at a line that sleeps."""
    return Fix.python(
        summary=f"wait for it, instead of sleeping at {endings.place(line)} until the next look",
        paste="item = inbox.get()  # queue.Queue, of a thread of this process\n"
        "dist.broadcast_object_list(items, src=0)  # of another rank",
        caution="or sleep for less: on average half of each sleep is lost",
    )
