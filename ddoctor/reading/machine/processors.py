"""`lscpu`: the processors of the host and its NUMA nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.evidence.host import Cpus, NumaNode
from ddoctor.reading.machine.kind import Kind, number

ROW = re.compile(r"^ *(?P<name>[A-Z][\w() /-]{1,60}): +(?P<value>\S.*)$")
NODE = re.compile(r"NUMA node(\d{1,4}) CPU\(s\)")
SPAN = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
MOST_CPUS = 10_000
"""The kernel has 8192 at most."""


def _read(lines: Sequence[str]) -> Iterator[Cpus]:
    rows = {row["name"]: row["value"].strip() for line in lines if (row := ROW.match(line))}
    logical = number(rows.get("CPU(s)", ""))
    online = _cpus(rows.get("On-line CPU(s) list", ""))
    if not logical or logical > MOST_CPUS or not online:
        return
    yield Cpus(
        model=rows.get("Model name", ""),
        logical=logical,
        allowed=online,
        numa=tuple(
            NumaNode(index=int(node[1]), cpus=_cpus(value))
            for name, value in rows.items()
            if (node := NODE.fullmatch(name))
        ),
    )


def _cpus(told: str) -> tuple[int, ...]:
    """The CPUs of a list such as ``0-31,64-95``.

    Raises:
        ValueError: it is none.
    """
    found: list[int] = []
    for part in filter(None, told.split(",")):
        span = SPAN.fullmatch(part.strip())
        if span is None or int(span[2] or span[1]) >= MOST_CPUS:
            raise ValueError(f"no list of CPUs: {part}")
        found += range(int(span[1]), int(span[2] or span[1]) + 1)
    return tuple(found)


KIND = Kind(
    name="lscpu",
    holds=("architecture: ",),
    begins=re.compile(r"^Architecture: +\S"),
    goes_on=re.compile(r"^ *[A-Z][\w() /-]{1,60}:"),
    read=_read,
    fewest=4,
)
