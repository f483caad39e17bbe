"""Frames of a stack, and the blocks of source around them."""

from __future__ import annotations

from ddoctor.evidence.section import Part


class Frame(Part, frozen=True, kw_only=True):
    """One frame of a stack."""

    file: str
    line: int
    function: str
    text: str = ""
    of_user: bool = False
    """Whether it is the user's code and not a library's."""


class Block(Part, frozen=True, kw_only=True):
    """A loop or a branch of the user's code that contains a frame."""

    file: str
    function: str
    loop: bool
    text: str
    """Its first line of source."""
    line: int
    end: int
