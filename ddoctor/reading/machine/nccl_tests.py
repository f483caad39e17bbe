"""The programs of nccl-tests (all_reduce_perf, …): bus bandwidth by message size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddoctor.evidence.printed import NcclTest, NcclTestPoint, NcclTests
from ddoctor.evidence.probes import RankPlace
from ddoctor.reading.machine.kind import Kind
from ddoctor.reading.prefixes import HOST

# src/common.cu of NVIDIA/nccl-tests, 2.0 to 2.18
NAME = re.compile(r"^# Collective test (?:starting|concluded): ([a-z_]{3,40}?)_perf")
RANK = re.compile(
    rf"^# +Rank +(?P<rank>\d{{1,6}}) (?:Group +\d{{1,6}} )?Pid +\d{{1,10}} on +(?P<host>{HOST})"
    r" device +(?P<device>\d{1,3}) \[(?P<bus>[0-9a-fA-F:x]{2,16})\] (?P<name>\S.{0,80})$"
)
ROW = re.compile(
    r"^ +(?P<bytes>\d{1,15}) +\d{1,15} +[a-z]\w{2,15} +(?:(?P<operation>[a-z]{3,8})\b)?"
    r"(?P<cells>[ \d.eN/A+-]{5,200})$"
)
MOST = 10**15
NO_OPERATION = "none"
NO_ROOT = "-1"
TOLERANCE = 0.05
"""Share by which the two bandwidths, each with two decimals, may differ from their ratio."""


@dataclass(frozen=True)
class _Row:
    """A row of the table."""

    point: NcclTestPoint
    reduces: bool
    ratio: float
    """Bus bandwidth by the algorithm's."""


def _read(lines: Sequence[str]) -> Iterator[NcclTests]:
    names = [found[1] for line in lines if (found := NAME.match(line))]
    rows = [row for found in map(ROW.match, lines) if found and (row := _row(found))]
    if not rows:
        return
    ranks = tuple(
        RankPlace(
            rank=int(found["rank"]),
            host=found["host"],
            device=f"cuda:{found['device']}",
            device_name=found["name"],
        )
        for found in map(RANK.match, lines)
        if found is not None
    )
    largest = max(rows, key=lambda row: row.point.bytes)
    # Until 2.16 no line names the program. PERFORMANCE.md: the factor of an all-reduce.
    factor = 2 * (len(ranks) - 1) / len(ranks) if ranks else 0.0
    is_all_reduce = largest.reduces and abs(largest.ratio - factor) < TOLERANCE * factor
    yield NcclTests(
        tests=(
            NcclTest(
                collective=names[0] if names else "all_reduce" if is_all_reduce else "",
                ranks=ranks,
                points=tuple(row.point for row in rows),
            ),
        )
    )


def _row(found: re.Match[str]) -> _Row | None:
    """A row: the root, then time, algbw, busbw and #wrong, out-of-place and in-place."""
    root, *cells = found["cells"].split()
    if len(cells) % 4:
        # Before 2.10, without a root.
        root, cells = NO_ROOT, [root, *cells]
    parts = [cells[place : place + 4] for place in range(0, len(cells), 4)]
    if not parts or len(parts) > 2 or len(parts[-1]) < 4:
        return None
    try:
        rates = [(float(part[2]), float(part[1])) for part in parts if part[2] != "N/A"]
        wrong = [int(float(part[3])) for part in parts if part[3] != "N/A"]
    except (OverflowError, ValueError):
        return None
    bus, algorithm = max(rates, default=(0.0, 0.0))
    if not (0 < bus < MOST and 0 < algorithm < MOST) or not all(0 <= one < MOST for one in wrong):
        return None
    operation = found["operation"] or NO_OPERATION
    return _Row(
        NcclTestPoint(bytes=int(found["bytes"]), bus_bandwidth=bus, wrong=max(wrong, default=None)),
        reduces=operation != NO_OPERATION and root == NO_ROOT,
        ratio=bus / algorithm,
    )


KIND = Kind(
    name="nccl-tests",
    holds=("# nthread", "# collective test starting"),
    begins=re.compile(r"^# (?:nThread \d|Collective test starting: )"),
    # NCCL's own lines may stand between those of the table.
    goes_on=re.compile(rf"^#|{ROW.pattern}|^.{{0,300}} NCCL (?:INFO|WARN)|^NCCL version"),
    read=_read,
    fewest=4,
)
