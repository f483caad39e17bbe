"""Micro-steps that the loop of a script counts itself, before each step of its optimizer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.evidence.launch import Launch, Setting
from ddoctor.evidence.script import Script

NAME = "script.accumulation"
CHANGES = re.compile(r"opt|scaler", re.IGNORECASE)
"""Objects whose ``step`` changes the parameters."""
TURN = re.compile(r"\(?\w+(?: \+ 1\))? % (?P<count>\d+|\w+(?:\.\w+)+) == 0(?: or .+)?")


def read(launch: Launch, script: Script) -> Iterator[Setting]:
    """Their number, where one optimizer steps if a count divides by it; nothing: unknown."""
    steps = [
        one
        for one in script.of(".step")
        if "training" in one.within and CHANGES.search(one.on) and not one.of_script
    ]
    match = TURN.fullmatch(steps[0].test) if len(steps) == 1 else None
    count = launch.written(match["count"]) if match is not None else None
    if count and "condition" in steps[0].step:
        at = steps[0].at
        yield Setting(name=NAME, value=str(count), file=at.file, line=at.line)
