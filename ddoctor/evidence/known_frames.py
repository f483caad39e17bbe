"""What a Python process is doing, by the frames on its stack."""

from __future__ import annotations

from typing import ClassVar

from ddoctor.evidence.section import Known, Part


class FrameRow(Part, frozen=True, kw_only=True):
    """Frames that tell of one activity."""

    activity: str
    file: str
    """The end of its path."""
    functions: tuple[str, ...]
    innermost: bool = False
    """Only where it is the innermost frame."""
    source: str


class KnownFrames(Known, frozen=True, kw_only=True):
    """The first row of which a frame is on the stack tells."""

    table: ClassVar[str] = "frames.toml"

    frame: tuple[FrameRow, ...]
