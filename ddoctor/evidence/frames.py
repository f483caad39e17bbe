"""Frames of a stack, and the source around them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile

from ddoctor.evidence.section import Part


class Frame(Part, frozen=True, kw_only=True):
    """One frame of a stack."""

    file: str
    line: int
    function: str
    text: str = ""
    of_user: bool = False
    """Whether it is the user's code and not a library's."""

    @property
    def bare(self) -> str:
        """The function without its class, which py-spy tells and tracebacks do not."""
        return self.function.rpartition(".")[2]


def shared(ways: Iterable[Sequence[Frame]]) -> tuple[Frame, ...]:
    """Return the frames that all of these calls begin with, outermost first."""
    rows = takewhile(lambda frames: len({*frames}) == 1, zip(*ways, strict=False))
    return tuple(same[0] for same in rows)


class Origin(Part, frozen=True, kw_only=True):
    """A statement that makes what a line reads, or the head of a loop or a function that gives it.

    Only those that are repeated with the line.
    """

    file: str
    function: str
    line: int
    end: int
    counts: bool = False
    """Whether it is a loop over numbers."""
    takes: bool = False
    """Whether it takes items out of something, such as ``table[rows]``."""
    gives: bool = False
    """Whether it takes the next batch: from a loader or an iterator."""


OF_A_RANK = re.compile(
    r"\brank\b|_rank\b|get_rank\(|is_\w*main|is_master|is_\w*process_zero|is_global_zero|is_rank"
)
"""How scripts and frameworks (accelerate, transformers, Lightning) test for a rank."""


class Block(Part, frozen=True, kw_only=True):
    """A loop or a branch of the user's code that contains a frame."""

    file: str
    function: str
    loop: bool
    text: str
    """Its first line of source."""
    line: int
    end: int
    decides: bool = False
    """Of a loop: whether a test of something else than a counter may end it early."""
    of_rank: bool = False
    """Of a branch: whether it asks for a rank, or for a value that its file sets by the rank."""
