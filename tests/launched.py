"""Launches, read from commands and from files that a test writes."""

from __future__ import annotations

import shlex
from pathlib import Path
from textwrap import dedent

from ddoctor.evidence.launch import Launch
from ddoctor.launch import reader


def launched(folder: Path, command: str, **texts: str) -> Launch:
    """The launch of a command; ``job_sh="…"`` writes the file job.sh first."""
    for name, text in texts.items():
        (folder / ".".join(name.rsplit("_", 1))).write_text(dedent(text).lstrip("\n"))
    return reader.read(shlex.split(command), folder)
