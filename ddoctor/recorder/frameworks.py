"""The framework that runs the loop, by the stack: an import alone shows nothing."""

from __future__ import annotations

import sys
from types import FrameType

from ddoctor import knowledge
from ddoctor.evidence.frameworks import KnownFrameworks
from ddoctor.recorder.harmless import harmless


class Frameworks:
    """Looks at what calls the loaders, the passes and the optimizer."""

    def __init__(self) -> None:
        self._files: set[str] = set()

    @harmless
    def look(self) -> None:
        """Note the files that lead to the caller, on the main thread."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            self._files.add(frame.f_code.co_filename)
            frame = frame.f_back

    @property
    def used(self) -> str:
        """The framework of the table; empty: none."""
        known: KnownFrameworks = knowledge.load(KnownFrameworks)
        return known.used(list(self._files))
