"""What is read of a sound script."""

from __future__ import annotations

from pathlib import Path

from ddoctor.evidence.section import Section
from ddoctor.script.reader import read

SECTIONS: tuple[Section, ...] = (read(Path(__file__).parent.parent / "script" / "sound.py", ()),)
