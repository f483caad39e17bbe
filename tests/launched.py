"""Launches, read from commands and from files that a test writes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

from ddoctor.evidence.launch import Launch, Setting
from ddoctor.launch import reader


def launched(folder: Path, command: str, **texts: str) -> Launch:
    """The launch of a command; ``job_sh="…"`` writes the file job.sh first."""
    for name, text in texts.items():
        (folder / ".".join(name.rsplit("_", 1))).write_text(dedent(text).lstrip("\n"))
    return reader.read(shlex.split(command), folder)


def launch(
    launcher: str, script: str, settings: Mapping[str, str], *, around: tuple[str, ...] = ()
) -> Launch:
    """A launch with these settings, all of the command line."""
    return Launch(
        command=(launcher, script),
        launcher=launcher,
        around=around,
        script=script,
        settings=tuple(
            Setting(name=name, value=value, origin="the command line")
            for name, value in settings.items()
        ),
    )
