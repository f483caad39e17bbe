"""Items of a dataset for which an archive or a database is opened, each time from the beginning."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.analysis import endings
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.steps import HotLine
from ddoctor.models import Fix

# Each reads a directory or a schema at first. A file of one item alone is opened otherwise.
OPENS = re.compile(
    r"\b(?:ZipFile|tarfile\.open|h5py\.File|lmdb\.open|sqlite3\.connect|netCDF4\.Dataset"
    r"|zarr\.open(?:_\w+)?)\(|\.readlines\(\)\s*\["
)


NOTABLE = 0.2
"""Share of the samples of what makes items."""


def among(lines: Sequence[HotLine]) -> Frame | None:
    """The first of these lines that does so for a notable part of the time; None: none does."""
    total = sum(line.samples for line in lines)
    frames = (line.frame for line in lines if line.samples >= NOTABLE * total)
    return next(filter(opens, frames), None)


def opens(line: Frame | None) -> bool:
    """Whether the line opens what holds many items, or reads all lines for one."""
    return line is not None and OPENS.search(line.text) is not None


def kept_open(line: Frame | None) -> Iterator[Fix]:
    """What to do instead, if it does."""
    if line is not None and opens(line):
        yield Fix.python(
            summary=f"open it once in each worker: {endings.place(line)} opens it for each item",
            paste=(
                "def __getitem__(self, index):\n"
                "    if self.file is None:  # None in __init__: a handle must not be shared\n"
                "        self.file = zipfile.ZipFile(self.path)  # or what is opened here\n"
                "    ..."
            ),
        )
