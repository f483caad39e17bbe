"""The table that maps stack frames to the activity of a Python process."""

from __future__ import annotations

from typing import ClassVar

from ddoctor.evidence.section import Known, Part


class FrameRow(Part, frozen=True, kw_only=True):
    """Frames that show one activity."""

    activity: str
    file: str
    """End of the file's path."""
    functions: tuple[str, ...]
    innermost: bool = False
    """Whether it counts as the innermost frame only."""
    native: bool = False
    """Whether the functions are native code, which only ``--native`` samples."""
    source: str


class KnownFrames(Known, frozen=True, kw_only=True):
    """The activities; the first row with a frame on the stack applies."""

    table: ClassVar[str] = "frames.toml"

    frame: tuple[FrameRow, ...]

    @property
    def native(self) -> frozenset[str]:
        """The native functions that show an activity."""
        return frozenset(name for row in self.frame if row.native for name in row.functions)
