"""Frames as torch records them in its dumps: of Python, and of C++ if the user asked for them."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from ddoctor.evidence.frames import Frame
from ddoctor.reading.libraries import LIBRARY, NATIVE

LONGEST_NAME = 1_000
"""Characters that are kept of a path or a function; those of C++ templates are longer."""
MOST_LINE = 10**9
# What torch.compile has written is in a folder of its own.
GENERATED = re.compile(r"torchinductor_|torch_compile_debug")
# The interpreter itself, and what has no name.
BINARY = re.compile(r"(?:^|/)python[\d.]*$|^\?*$")


class RecordedFrame(msgspec.Struct):
    """One frame."""

    name: str
    filename: str
    line: Annotated[int, msgspec.Meta(le=MOST_LINE)]

    def __post_init__(self) -> None:
        self.name, self.filename = self.name[:LONGEST_NAME], self.filename[:LONGEST_NAME]
        # Python has none for some frames, and says -1.
        self.line = max(0, self.line)


def placed(file: str, line: int, function: str) -> Frame:
    """Return a frame as evidence."""
    foreign = LIBRARY.search(file) or GENERATED.search(file) or is_native(file, function)
    return Frame(file=file, line=line, function=function, of_user=not foreign)


def is_native(file: str, function: str) -> bool:
    """Whether a frame is of C or C++; the file of one without debug information is ``??``."""
    return "::" in function or BINARY.search(file) is not None or NATIVE.search(file) is not None
