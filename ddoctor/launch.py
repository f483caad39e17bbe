"""The outside of the probes: start torchrun, follow the ranks, end the process tree at the limit."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from operator import or_
from pathlib import Path
from pkgutil import iter_modules
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec
import psutil

from ddoctor.agent import CREW_FILE, EXITS_FILE, Crew, Exit
from ddoctor.evidence.bundle import section_types
from ddoctor.evidence.probes import ProbeRun, ProbeRuns, RankState
from ddoctor.evidence.section import Section
from ddoctor.journal import Follower, Line

PROBE_LIMIT_SECONDS = 15.0
"""The probes stop by themselves within 8 s; on a loaded machine it may take somewhat longer."""
RELAUNCH_SECONDS = 10.0
"""A new launch, after a probe hung or crashed, is not begun with less than this left."""
GRACE_SECONDS = 2.0
"""torchrun ends healthy ranks within this after SIGTERM; a stopped rank needs SIGKILL."""

MARK = "DDOCTOR_LAUNCH"
"""Environment variable that all processes of one launch carry, wherever they are re-parented."""

PACKAGE = "ddoctor.probes"

Outcome = Literal["completed", "skipped", "hung", "crashed", "interrupted"]


def names() -> tuple[str, ...]:
    """The probes there are."""
    return tuple(sorted(module.name for module in iter_modules(import_module(PACKAGE).__path__)))


def describe(name: str) -> str:
    """What a probe measures, in one line, read without importing it (and torch)."""
    (folder,) = import_module(PACKAGE).__path__
    tree = ast.parse(Path(folder, f"{name}.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0]


def launch(
    names: Sequence[str],
    *,
    limit: float,
    data: Path,
    force: bool = False,
    started: Callable[[str], None] = lambda name: None,
) -> tuple[Section, ...]:
    """Run probes on every GPU of this machine, or on two CPU ranks, within ``limit`` seconds.

    A name with a dot is a module of the user's own. What was measured is returned whatever
    happens: a probe that hangs or crashes ends with its whole process tree, and the others are run
    in a new launch; an interruption (Ctrl-C) ends all, and the rest is told to be interrupted.
    """
    raise NotImplementedError
