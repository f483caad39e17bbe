"""The memory snapshots: which lines hold the memory of each GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.analysis import endings
from ddoctor.analysis.describe import GIB
from ddoctor.evidence.memory_snapshot import DeviceMemory, Holder, MemorySnapshots
from ddoctor.evidence.section import Evidence
from ddoctor.report.wording import Grid, counted

MOST_DEVICES = 4
"""Of more GPUs, those that ran out of memory are shown, or else the fullest ones."""
SLIGHT = 0.01
"""Share of the reserved memory: smaller holders are added up."""


def seen(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line of the report's head."""
    for section in evidence.all(MemorySnapshots):
        yield "snapshots", f"of the memory of {counted(len(section.devices), 'GPU')}"
        for one in _shown(section):
            yield (
                "memory",
                f"{_name(one)}: {_gib(one.reserved)} GiB reserved, {_gib(one.allocated)} of it "
                f"allocated{f', {_gib(one.unused)} free{_blocks(one)}' if one.unused else ''}",
            )


def holders(evidence: Evidence) -> Grid:
    """Return the table of what holds the memory; it has no rows if there is no snapshot."""
    devices = [one for section in evidence.all(MemorySnapshots) for one in _shown(section)]
    return Grid(
        title="what holds the GPU memory",
        head=("rank", "GiB", "share", "what"),
        rows=tuple(row for one in devices for row in _rows(one)),
    )


def _shown(section: MemorySnapshots) -> Sequence[DeviceMemory]:
    ordered = sorted(section.devices, key=lambda one: (one.failure is None, -one.reserved))
    shown = ordered[:MOST_DEVICES]
    return [one for one in section.devices if one in shown]


def _rows(one: DeviceMemory) -> Iterator[tuple[str, str, str, str]]:
    def row(size: int, what: str) -> tuple[str, str, str, str]:
        return _name(one), _gib(size), f"{size / max(1, one.reserved):.0%}", what

    large = [each for each in one.holders if each.bytes >= SLIGHT * one.reserved or each.grown]
    rest = one.allocated - sum(each.bytes for each in large)
    yield from (row(each.bytes, _what(each)) for each in large)
    if rest:
        yield row(rest, "others")
    if one.unused:
        yield row(one.unused, "reserved, not allocated")


def _what(one: Holder) -> str:
    # The line says more than that it is none of the known kinds.
    kind = "without a recorded stack" if one.kind == "no stack" else str(one.kind)
    parts = [] if one.kind == "other" and one.line is not None else [kind]
    if one.line is not None:
        parts.append(endings.place(one.line))
    grown = f", {_gib(one.grown)} GiB added step by step" if one.grown else ""
    return f"{', '.join(parts)} ({counted(one.blocks, 'block')}{grown})"


def _blocks(one: DeviceMemory) -> str:
    return f" in blocks of at most {_gib(one.largest_free)}" if one.largest_free else ""


def _name(one: DeviceMemory) -> str:
    return f"{one.name}, GPU {one.device}"


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"
