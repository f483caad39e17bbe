"""Removes folder names from a bundle that leaves the company."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from ddoctor.evidence.section import Section

# A path in a word of a command, such as ``--data=/data/x``.
FOLDERS = re.compile(r"[^=\s]*/")
# The path within a library identifies a function; the part before it does not.
INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/|^.*/lib(?:64)?/python\d+\.\d+/")


# A path within a text; the file's name remains.
WITHIN = re.compile(r"(?<![\w/.])/(?:[\w.@+-]{1,255}/)+(?=[\w.@+-])")


# Fields with a path, in all sections of an attached run.
PLACES = ("file", "path", "mount")
# Fields with several words or paths.
WORDS = ("command", "files")

SectionType = TypeVar("SectionType", bound=Section)


def redacted(section: SectionType) -> SectionType:
    """Return the section with file names instead of paths."""
    return msgspec.convert(_shortened(msgspec.to_builtins(section)), type(section))


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _file(one)
            if name in PLACES and isinstance(one, str)
            else [FOLDERS.sub("", word) for word in one]
            if name in WORDS
            else _shortened(one)
            for name, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_shortened(one) for one in value]
    return WITHIN.sub("", value) if isinstance(value, str) else value


def _file(path: str) -> str:
    inside = INSTALLED.sub("", path)
    return inside if inside != path else path.rpartition("/")[2]
