"""The tables that ship with ddoctor: every row names its source, and tests check plausibility."""

from __future__ import annotations

import sys
from functools import cache
from importlib.resources import files
from typing import TypeVar

import msgspec

from ddoctor.evidence.section import Known

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KnownType = TypeVar("KnownType", bound=Known)


@cache
def load(wanted: type[KnownType]) -> KnownType:
    """Read the table of a type."""
    return msgspec.convert(tomllib.loads(written(wanted)) | {"type": wanted.label()}, wanted)


def written(wanted: type[Known]) -> str:
    """The text of a table: of a file, or of the files of a folder, one after the other."""
    place = files("ddoctor.knowledge").joinpath(wanted.table)
    parts = sorted(place.iterdir(), key=lambda part: part.name) if place.is_dir() else [place]
    return "\n".join(part.read_text(encoding="utf-8") for part in parts)
