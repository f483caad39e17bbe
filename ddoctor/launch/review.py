"""What a launch command would start, and what the source of its script says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ddoctor.evidence import source_text
from ddoctor.evidence.section import Section
from ddoctor.launch import reader
from ddoctor.launch.option_source import options_of
from ddoctor.script import reader as script


def review(command: Sequence[str], folder: Path) -> Iterator[Section]:
    """Read a command typed in a folder, and its script where it is a file there.

    Raises:
        DoctorError: as ``reader.read``.
    """
    launch = reader.read(command, folder)
    yield launch
    if (source := reader.script_file(launch, folder)) is not None:
        yield script.read(source, [folder])
    source_text.forget()
    options_of.cache_clear()
