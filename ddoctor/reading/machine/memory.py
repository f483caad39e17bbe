"""`free`, `free -m`, `free -h`: the memory of the host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.evidence.host import Memory
from ddoctor.reading.machine.kind import Kind, size

COLUMNS = ("total", "used", "free", "shared", "buff/cache", "available")
CELL = r"\d[\d.,]{0,20}[BKMGTP]?i?B?"
ROW = re.compile(rf"^(?P<name>Mem|Swap|Total): +(?P<cells>{CELL}(?: +{CELL}){{1,6}})$")

# Without a letter: KiB, or MiB with -m. Hosts that train have from 1 GiB to 1 TiB.
KIBIBYTES_FROM, MEBIBYTES_FROM, MEBIBYTES_BELOW = 10_000_000, 1_000, 1_000_000


def _read(lines: Sequence[str]) -> Iterator[Memory]:
    rows = {row["name"]: row["cells"].split() for line in lines if (row := ROW.match(line))}
    memory, swap = rows.get("Mem", []), rows.get("Swap", [])
    unit = _unit(memory[0]) if len(memory) == len(COLUMNS) else None
    if unit is None:
        return
    total, available = size(memory[0], unit), size(memory[5], unit)
    if total and available is not None:
        yield Memory(
            total=total,
            available=available,
            swap_total=(size(swap[0], unit) if swap else 0) or 0,
            swap_free=(size(swap[2], unit) if len(swap) > 2 else 0) or 0,
        )


def _unit(total: str) -> int | None:
    """The unit of numbers without a letter; None: not known."""
    if not total.isdigit():
        return 1
    count = int(total)
    if MEBIBYTES_FROM <= count < MEBIBYTES_BELOW:
        return 2**20
    return 2**10 if count >= KIBIBYTES_FROM else None


KIND = Kind(
    name="free",
    holds=("buff/cache",),
    begins=re.compile(rf"^ +{' +'.join(COLUMNS)}$"),
    goes_on=ROW,
    read=_read,
    fewest=2,
)
