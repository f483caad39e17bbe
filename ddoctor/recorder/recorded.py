"""The facts that a rank writes next to its tape, as one JSON file: readable without torch."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from ddoctor.evidence import redaction
from ddoctor.evidence.loading import CurvePoint, FirstBatches, FirstInputs, Loader, LoopTurns
from ddoctor.evidence.memory_headroom import MemoryHeadroom
from ddoctor.evidence.steps import Growth, HotLine
from ddoctor.evidence.threads import ScriptThread
from ddoctor.evidence.training import RankFlags
from ddoctor.evidence.wrapping import Wrapper

TAPE, FACTS, ENDING, CRASH = "tape", "facts.json", "ending.json", "crash"
GROWN = "grown.json"
"""The files of a rank, in its folder.

The one of a crash names where its stack goes: to no file, as nothing redacts it.
"""

START = (
    "import sys; sys.path[0] or sys.path.pop(0); before = {*sys.modules};"
    " from ddoctor.recorder.main import main; main(before)"
)
"""Code for ``python -c`` that runs FOLDER SCRIPT ARGS.

With ``-m``, a ``random.py`` in the working folder would be imported instead of Python's; with
PYTHONSAFEPATH, ``sys.flags`` would differ.
"""
ISOLATE = "DDOCTOR_ISOLATE"
"""Set if the loaders are to be measured in isolation at the end."""
GROW = "DDOCTOR_GROW"
"""Set if the script is to train on growing batches: the request, as JSON."""

NO_GROWTH = Growth(rank=0, host="", times=(), steps=(), resident=())


class Grown(msgspec.Struct, frozen=True, kw_only=True):
    """The result, as far as the search went."""

    headroom: MemoryHeadroom | None = None
    """Memory of all ranks."""
    trying: int | None = None
    """The micro-batch of the step in progress."""
    why: str = ""
    """Why the search was impossible; empty: it was not."""


class LoaderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A loader, and its waits."""

    loader: Loader
    waits: tuple[tuple[int, float, bool], ...]
    """Step and seconds of each batch, and whether it is the first of its epoch."""
    preparing: tuple[tuple[int, float], ...] = ()
    """Step and seconds of each batch that the main process itself worked on before the model."""
    epochs: tuple[FirstBatches, ...] = ()


class CallFacts(msgspec.Struct, kw_only=True):
    """One line that calls a collective."""

    operation: str
    place: str
    of_user: bool
    within: str = ""
    """The phase of the last call: before the second step, no model is known."""
    steps: list[tuple[int, int, int, float]] = []
    """Each step that calls it: number, calls, bytes and seconds."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All facts of one rank, without what the other ranks and its own steps add to them."""

    wrappers: tuple[Wrapper, ...] = ()
    loaders: tuple[LoaderFacts, ...] = ()
    calls: tuple[CallFacts, ...] = ()
    inputs: FirstInputs | None = None
    turns: tuple[LoopTurns, ...] = ()
    flags: RankFlags | None = None
    places: tuple[HotLine, ...] = ()
    """Lines in which the main thread was sampled."""
    samples: tuple[tuple[float, int, int, int], ...] = ()
    """Time, phase, the step's phase before it, and place of each sample of the main thread."""
    memory: tuple[tuple[float, int, float, float, float | None, float], ...] = ()
    """Time, completed steps, MiB of the process, MiB on the device, MiB that malloc keeps free; the
    last in all DataLoader workers, too."""
    script_threads: tuple[ScriptThread, ...] = ()
    growth: Growth = NO_GROWTH
    grown: float = 0.0
    """Largest growth of the process before the training, in MiB."""
    fsdp: bool = False
    """Whether the script has imported FSDP."""
    threads: int = 0
    gc_enabled: bool = True
    optimizers: tuple[str, ...] = ()
    framework: str = ""
    device: str = "cpu"
    curve: tuple[CurvePoint, ...] = ()


Written = TypeVar("Written")


def read(folder: Path, name: str, kind: type[Written]) -> Written | None:
    """Read a rank's file; None: the rank did not get that far."""
    try:
        return msgspec.json.decode((folder / name).read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def write(folder: Path, name: str, value: object) -> int:
    """Write a file atomically: a reader sees all of it, or the previous content.

    Return 0, or the errno of what failed, as on a full disk; the script continues.
    """
    new = folder / f"{name}.new"
    try:
        new.write_bytes(redaction.encoded(value))
        new.replace(folder / name)
    except OSError as error:
        with suppress(OSError):
            # The script may need the little room that there is.
            new.unlink()
        return error.errno or errno.EIO
    return 0
