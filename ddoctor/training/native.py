"""What native code prints as it ends a rank: read as `ddoctor diagnose` reads a log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path

from msgspec.structs import replace

from ddoctor.evidence.log import Log, LogEvent
from ddoctor.evidence.training import RankEnding
from ddoctor.reading.inputs import Content, Input
from ddoctor.reading.logs import LogReader

# Stacks of C++ and of faulthandler fill the last lines, and a kernel's assertion is printed by each
# of its threads.
FRAME = re.compile(
    r"frame #\d+:|Exception raised from |Extension modules: |(?:Current thread|Thread) 0x"
    r'|  File ".+", line \d+ in |  <no Python frame>'
    r"|Fatal Python error: (?:Aborted|Segmentation fault|Bus error|Illegal instruction|Floating)"
)
NUMBER = re.compile(r"\d+")
STDERR = Input(path=Path("stderr"), name="stderr")


def brief(printed: str) -> str:
    """These lines without native stacks, and one of those that differ in their numbers alone."""
    lines = (line for line in printed.splitlines() if line.strip() and not FRAME.match(line))
    return "\n".join({NUMBER.sub("", line): line for line in lines}.values())


def log(endings: Iterable[RankEnding]) -> Log | None:
    """What ranks printed that died without an exception; None: no line of it has a meaning."""
    events = tuple(event for ending in endings if ending.printed for event in _events(ending))
    if not events:
        return None
    ranks = len({event.rank for event in events})
    return Log(files=(STDERR.name,), lines=len(events), ranks=ranks, events=events)


def _events(ending: RankEnding) -> Iterator[LogEvent]:
    reader = LogReader()
    reader.read(STDERR, Content(BytesIO(ending.printed.encode(errors="replace"))))
    for section in reader.sections():
        if isinstance(section, Log):
            for event in section.events:
                # Of what it printed only a part is left, so lines have no numbers.
                yield replace(event, rank=ending.rank, host=ending.host, line=0, last=0)
