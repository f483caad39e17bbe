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
    native: bool = False
    """Functions of native code, which are seen only where it is asked for them."""
    source: str


class KnownFrames(Known, frozen=True, kw_only=True):
    """The first row of which a frame is on the stack tells."""

    table: ClassVar[str] = "frames.toml"

    frame: tuple[FrameRow, ...]

    @property
    def native(self) -> frozenset[str]:
        """The functions of native code that tell of something."""
        return frozenset(name for row in self.frame if row.native for name in row.functions)
