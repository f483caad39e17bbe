"""The error counters of NVLinks, as `nvidia-smi nvlink -e` and `dcgmi nvlink -e` name them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ddoctor.evidence.printed import LinkErrors
from ddoctor.reading.machine.kind import number

# NVLink 5 counts the recoveries that failed and those that succeeded. Its packets, symbols and
# corrected codewords are counted as well, and are no errors of the link.
RECOVERY = re.compile(r"recovery errors?|link recovery failed(?: events)?", re.I)
REPAIRED = re.compile(r"replay errors?|crc (?:flit |data )?errors?", re.I)


@dataclass
class Counters:
    """Those of the links that a command lists."""

    _recoveries: dict[tuple[int, int], int] = field(default_factory=dict)
    _repaired: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, gpu: int, link: int, name: str, told: str) -> None:
        """Add one counter of a link, if it is one of errors and has a number."""
        count = number(told)
        for names, counts in ((RECOVERY, self._recoveries), (REPAIRED, self._repaired)):
            if count is not None and names.fullmatch(name):
                counts[gpu, link] = counts.get((gpu, link), 0) + count

    @property
    def links(self) -> tuple[LinkErrors, ...]:
        """The links that have such counters."""
        return tuple(
            LinkErrors(
                gpu=gpu,
                link=link,
                recoveries=self._recoveries.get((gpu, link), 0),
                repaired=self._repaired.get((gpu, link), 0),
            )
            for gpu, link in sorted({*self._recoveries, *self._repaired})
        )
