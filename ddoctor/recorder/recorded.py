"""What a rank writes down beside its tape, as one JSON file: read without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from ddoctor.evidence.loading import CurvePoint, FirstBatches, Loader
from ddoctor.evidence.memory_headroom import MemoryHeadroom
from ddoctor.evidence.training import RankFlags
from ddoctor.evidence.wrapping import Wrapper

TAPE, FACTS, ENDING, CRASH = "tape", "facts.json", "ending.json", "crash.txt"
GROWN = "grown.json"
"""The files of a rank, in its folder."""

SAFE_PATH = "DDOCTOR_SAFE_PATH"
"""The variable that holds what PYTHONSAFEPATH was before it was set for the recorder."""
ISOLATE = "DDOCTOR_ISOLATE"
"""Set where the loaders are to be tried alone at the end."""


GROW = "DDOCTOR_GROW"
"""Set where the script is to train on more and more samples: the request, as JSON."""


class Grown(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it, as far as it came."""

    headroom: MemoryHeadroom | None = None
    """Of all ranks."""
    trying: int | None = None
    """Samples at a time of the step that it was at."""
    why: str = ""
    """Why it could not be done."""


class LoaderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A loader, and its waits."""

    loader: Loader
    waits: tuple[tuple[int, float], ...]
    """Step and seconds of each batch."""
    epochs: tuple[FirstBatches, ...] = ()


class CallFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One line that calls a collective."""

    operation: str
    place: str
    of_user: bool
    steps: tuple[tuple[int, int, int, float], ...]
    """Step, calls, bytes and seconds up to its end."""


class CodePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A line at which the main thread was met."""

    file: str
    line: int
    function: str
    text: str
    inner: str


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Of a rank's GPU, in MiB."""

    between: float | None
    """Allocated between two steps, without gradients; None: there were too few."""
    peak: float
    """The most that was allocated."""
    reserved: float
    """The most that the allocator had of the device."""
    total: float


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All that a rank knows of itself."""

    wrappers: tuple[Wrapper, ...] = ()
    loaders: tuple[LoaderFacts, ...] = ()
    calls: tuple[CallFacts, ...] = ()
    flags: RankFlags | None = None
    places: tuple[CodePlace, ...] = ()
    samples: tuple[tuple[float, int, int], ...] = ()
    """Time, phase and place of each look at the main thread."""
    memory: tuple[tuple[float, int, float, float], ...] = ()
    """Time, steps done, MiB of the process, MiB on the device."""
    device_memory: DeviceMemory | None = None
    grown: float = 0.0
    """MiB, the most by which the process grew before it trained."""
    fsdp: bool = False
    """Whether the script has imported it."""
    graph_tensors_before: int | None = None
    """After the first step."""
    graph_tensors: int | None = None
    graph_depth_before: int | None = None
    graph_depth: int | None = None
    threads: int = 0
    gc_enabled: bool = True
    optimizers: tuple[str, ...] = ()
    framework: str = ""
    device: str = "cpu"
    curve: tuple[CurvePoint, ...] = ()


Written = TypeVar("Written")


def read(folder: Path, name: str, kind: type[Written]) -> Written | None:
    """A file that a rank wrote; None: it did not come so far."""
    try:
        return msgspec.json.decode((folder / name).read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def write(folder: Path, name: str, value: object) -> None:
    """Write a file in one go: whoever reads it finds all of it, or what was there before."""
    new = folder / f"{name}.new"
    new.write_bytes(msgspec.json.encode(value))
    new.replace(folder / name)
