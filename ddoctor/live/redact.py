"""Less of where things lie: for a bundle that leaves the house."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ddoctor.evidence.live import LiveLook

# Of a word of a command, say ``--data=/data/x``.
FOLDERS = re.compile(r"[^=\s]*/")
# A library's own path says which of its functions it is; what comes before it does not.
INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/|^.*/lib(?:64)?/python\d+\.\d+/")


def redacted(look: LiveLook) -> LiveLook:
    """The same, with the names of files in place of their paths."""
    return msgspec.convert(_shortened(msgspec.to_builtins(look)), LiveLook)


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _file(one)
            if name == "file"
            else [FOLDERS.sub("", word) for word in one]
            if name == "command"
            else _shortened(one)
            for name, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_shortened(one) for one in value]
    return value


def _file(path: str) -> str:
    inside = INSTALLED.sub("", path)
    return inside if inside != path else path.rpartition("/")[2]
