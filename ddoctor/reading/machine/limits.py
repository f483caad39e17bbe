"""`ulimit -a`: the resource limits of a shell, as bash, zsh and dash print them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.evidence.host import Limit, Limits
from ddoctor.evidence.section import Unseen
from ddoctor.reading.machine.kind import Kind

LINE = re.compile(
    r"^(?:(?:(?P<bash>[a-zA-Z][\w -]{3,40}?) +\((?:[^()]{1,30}, )?-[A-Za-z]\))"
    r"|(?:-[A-Za-z]: (?P<zsh>[a-z][\w -]{1,40}?)(?: \([a-z]+\))?)"
    r"|(?P<dash>[a-z][a-z ]{1,20}(?:\((?:seconds|blocks|kbytes)\))?))"
    r" +(?P<value>unlimited|\d{1,18})$"
)
NAMES = {
    "open files": "open files",
    "max open files": "open files",
    "file descriptors": "open files",
    "nofiles": "open files",
    "max locked memory": "locked memory",
    "locked-in-memory size": "locked memory",
    "locked memory": "locked memory",
    "max user processes": "processes",
    "max processes": "processes",
    "processes": "processes",
    "process": "processes",
}
HARD = Unseen(what="the hard limits", why="`ulimit -a` prints the soft ones")


def _read(lines: Sequence[str]) -> Iterator[Limits]:
    told: dict[str, int | None] = {}
    for line in lines:
        if row := LINE.match(line):
            words = (row["bash"] or row["zsh"] or row["dash"]).strip().partition("(")[0]
            if words in NAMES:
                value = row["value"]
                told[NAMES[words]] = None if value == "unlimited" else int(value)
    if len(told) < 3:
        return
    locked = told["locked memory"]
    yield Limits(
        open_files=_limit(told["open files"]),
        # Each shell counts it in KiB.
        locked_memory=_limit(None if locked is None else locked * 1024),
        processes=_limit(told["processes"]),
        unseen=(HARD,),
    )


def _limit(soft: int | None) -> Limit:
    return Limit(soft=soft, hard=None)


KIND = Kind(
    name="ulimit -a",
    holds=("(blocks, -c)", "time (seconds)", "time(seconds)"),
    begins=LINE,
    goes_on=LINE,
    read=_read,
    fewest=5,
)
