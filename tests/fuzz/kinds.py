"""Each kind of input, and what must hold for whatever is made of it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from rich.console import Console

from ddoctor import engine
from ddoctor.__main__ import line
from ddoctor.errors import DoctorError
from ddoctor.evidence import bundle
from ddoctor.evidence.section import Evidence
from ddoctor.models import JUDGING, Report
from ddoctor.report import difference, html, markdown, schema, terminal
from tests.fuzz import mutation, seeds

OF_OTHERS = ("collect ", "probe ")
"""What the evidence itself says to have crashed; everything else in the list is a check."""


class Broken(Exception):
    """A failure that ddoctor survives: a check that crashed, a part of a report that is missing."""


Kind = Callable[[Random, Path], None]
"""Makes an input in the folder and has ddoctor read it; `DoctorError`: refused in one line."""


def diagnosed(random: Random, folder: Path) -> None:
    """``ddoctor diagnose``, its terminal and JSON."""
    evidence, report = _judged(random, folder)
    width = random.choice((100, 100, 40, 1))
    terminal.render(report, evidence, Console(file=io.StringIO(), width=width))
    schema.render(report)


def as_markdown(random: Random, folder: Path) -> None:
    """``ddoctor report --markdown``."""
    evidence, report = _judged(random, folder)
    markdown.render(report, evidence)


def as_page(random: Random, folder: Path) -> None:
    """``ddoctor report --html``."""
    evidence, report = _judged(random, folder)
    html.render(report, evidence)


def compared(random: Random, folder: Path) -> None:
    """``ddoctor diff``: a bundle with itself, changed twice."""
    name = _name(random)
    pair = [_read(_changed(name, random, random.randint(0, 3)), folder) for _ in "ab"]
    found = difference.compare(*pair)
    found.json()
    "\n".join(found.lines())


def _name(random: Random) -> str:
    return random.choice(list(seeds.bundles()))


def _judged(random: Random, folder: Path) -> tuple[Evidence, Report]:
    evidence = _read(_bundle(random), folder)
    report = engine.examine(evidence, "diagnose")
    for row in report.crashed:
        if row.check != JUDGING and not row.check.startswith(OF_OTHERS):
            raise Broken(f"{row.check}: {row.error}")
    return evidence, report


def _bundle(random: Random) -> bytes:
    """A bundle with one to four values changed, at times with few of its sections or cut bytes."""
    raw = _changed(_name(random), random, random.randint(1, 4))
    return mutation.damaged(raw, random) if random.random() < 0.05 else raw


def _changed(name: str, random: Random, changes: int) -> bytes:
    document: Any = msgspec.json.decode(seeds.bundles()[name])
    if random.random() < 0.3:
        kept = random.random()
        document["sections"] = [one for one in document["sections"] if random.random() < kept]
    # Of the header there is little to change.
    mutation.changed(document if random.random() < 0.02 else document["sections"], random, changes)
    return _json(document)


def _json(document: Any) -> bytes:
    # Not msgspec, which writes no lone surrogates.
    import json

    return json.dumps(document).encode()


def _read(raw: bytes, folder: Path) -> Evidence:
    path = folder / f"bundle-{os.getpid()}.json"
    path.write_bytes(raw)
    return bundle.read(path)


KINDS: dict[str, Kind] = {
    "diagnose": diagnosed,
    "markdown": as_markdown,
    "html": as_page,
    "diff": compared,
}


def outcome(kind: str, number: int, folder: Path) -> str:
    """``judged``, or why it was refused; what else is raised is a fault of ddoctor."""
    try:
        KINDS[kind](Random(f"{kind} {number}"), folder)
    except DoctorError as error:
        if not line(str(error)).isprintable():
            raise Broken(f"no single line: {error}") from error
        return "refused"
    return "judged"
