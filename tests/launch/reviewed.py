"""Launches with the source of their script, and what is told of both."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

from ddoctor import engine
from ddoctor.evidence.section import Evidence
from ddoctor.launch.review import review
from ddoctor.models import Finding
from tests.launch.files import machine


def reviewed(
    folder: Path, command: str, source: str, *, gpus: int = 4, **texts: str
) -> Sequence[Finding]:
    """The findings about a launch of train.py; ``ds_json="…"`` writes the file ds.json first."""
    for name, text in {"train_py": source, **texts}.items():
        (folder / ".".join(name.rsplit("_", 1))).write_text(dedent(text).lstrip("\n"))
    sections = [*review(shlex.split(command), folder), machine(gpus)]
    report = engine.examine(Evidence(sections), "doctor")
    assert report.crashed == ()
    return report.findings


def causes(
    folder: Path, command: str, source: str, *, gpus: int = 4, **texts: str
) -> Sequence[str]:
    """Their causes, in order."""
    return [one.cause for one in reviewed(folder, command, source, gpus=gpus, **texts)]
