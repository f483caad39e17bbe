"""Small files of the kernel, read without a failure where one is missing."""

from __future__ import annotations

import re
from pathlib import Path


def text(path: Path) -> str:
    """What a file holds, without blanks at its ends; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """The whole number that a file holds; None: none, or a negative one."""
    held = text(path)
    return int(held) if held.isdecimal() else None


def search(pattern: str, path: Path) -> str:
    """The first group of a pattern's first match in a file; empty: none."""
    found = re.search(pattern, text(path), re.MULTILINE)
    return found[1].strip() if found else ""
