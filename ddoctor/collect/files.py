"""Small files of the kernel, read without a failure where one is missing."""

from __future__ import annotations

from pathlib import Path


def text(path: Path) -> str:
    """What a file holds, without blanks at its ends; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
