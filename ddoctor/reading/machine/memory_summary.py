"""`torch.cuda.memory_summary()`: what the allocator counted on a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.evidence.printed_figures import AllocatorTable, PrintedMemory
from ddoctor.reading.machine.kind import Kind, size

# torch/cuda/memory.py; until 1.13 it wrote MB for MiB.
TITLE = re.compile(r"^\|\s{1,20}PyTorch CUDA memory summary, device ID (?P<device>\d{1,4})\s*\|?$")
COUNTS = re.compile(
    r"^\|\s{1,20}CUDA OOMs: (?P<failures>\d{1,12})\s{0,20}\|"
    r"\s{1,20}cudaMalloc retries: (?P<retries>\d{1,12})\s*\|?$"
)
CELL = r"(\d{1,18} [KMGTP]?i?B?)\s{0,9}"
ROW = re.compile(
    rf"^\| (?P<name>[A-Z][\w -]{{3,30}}?)\s{{1,30}}\|\s{{1,9}}{CELL}\|\s{{1,9}}{CELL}\|"
)
NOW, PEAK = 0, 1
ALLOCATED, RESERVED, IN_PIECES = "Allocated memory", "GPU reserved memory", "Non-releasable memory"


def _read(lines: Sequence[str]) -> Iterator[PrintedMemory]:
    title = TITLE.match(lines[0])
    counts = next((found for found in map(COUNTS.match, lines) if found), None)
    rows = {
        found["name"]: (_bytes(found[2]), _bytes(found[3]))
        for found in map(ROW.match, lines)
        if found is not None
    }
    if title is None or counts is None or not {ALLOCATED, RESERVED} <= rows.keys():
        return
    yield PrintedMemory(
        tables=(
            AllocatorTable(
                device=int(title["device"]),
                failures=int(counts["failures"]),
                retries=int(counts["retries"]),
                most_allocated=rows[ALLOCATED][PEAK],
                reserved=rows[RESERVED][NOW],
                most_in_pieces=rows.get(IN_PIECES, (0, 0))[PEAK],
            ),
        )
    )


def _bytes(cell: str) -> int:
    return size(cell.replace(" ", "")) or 0


KIND = Kind(
    name="memory_summary",
    holds=("pytorch cuda memory summary",),
    begins=TITLE,
    goes_on=re.compile(r"^\|.{0,300}\|?$"),
    read=_read,
    fewest=5,
)
