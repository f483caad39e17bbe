"""What a launch command would start, and what the source of its script says."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace as with_fields

from ddoctor.evidence import source_text
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.script import Script
from ddoctor.evidence.section import Section
from ddoctor.launch import model_files, own_accumulation, reader
from ddoctor.launch.option_source import options_of
from ddoctor.proc import collector
from ddoctor.script import reader as script


def review(command: Sequence[str], folder: Path) -> Iterator[Section]:
    """Read a command typed in a folder, and its script where it is a file there.

    Raises:
        DoctorError: as ``reader.read``.
    """
    # Syntax trees are many objects that live on: to visit them again takes a tenth of the time.
    with collector.at_rest():
        launch = reader.read(command, folder)
        path = reader.script_file(launch, folder)
        source = script.read(path, [folder]) if path is not None else None
        sizes = model_files.counted(_models(launch, source), folder)
        counted = own_accumulation.read(launch, source) if source is not None else ()
    yield with_fields(launch, settings=(*launch.settings, *sizes, *counted))
    if source is not None:
        yield source
    source_text.forget()
    options_of.cache_clear()


def source_of(script: Sequence[str], folder: Path) -> Script | None:
    """Read the source of one rank, which does not know how the others were launched.

    ``script``: its file, or ``-m`` and its module, and its arguments. None: it is no file here.

    Raises:
        DoctorError: as ``reader.read``.
    """
    found = review((sys.executable, *script), folder)
    return next((one for one in found if isinstance(one, Script)), None)


def _models(launch: Launch, source: Script | None) -> Iterator[str]:
    """What may name a model: arguments, and what a script gives to ``from_pretrained``."""
    yield from (one.value for one in launch.settings if one.name.startswith("arg."))
    for call in source.calls if source is not None else ():
        if call.name.endswith(".from_pretrained"):
            for origin in call.origin("pretrained_model_name_or_path", 0):
                yield origin.strip("'\"")
