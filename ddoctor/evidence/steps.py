"""Time of each training step by phase, on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from statistics import median
from typing import ClassVar, Literal

from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Part, Section
from ddoctor.models import Command

PHASES = (
    "loader",
    "to-device",
    "forward",
    "backward",
    "optimizer",
    "waiting",
    "transfer",
    "checkpoint",
    "evaluation",
    "gc",
    "rest",
)
"""The phases of a step, in drawing order. ``waiting`` is the time in collectives until the last
rank arrives, ``transfer`` the time in them after that."""

BETWEEN_RANKS = ("waiting", "transfer")
"""The phases that are not the rank's local work."""


class Phase(Part, frozen=True, kw_only=True):
    """One phase of one rank: seconds in each step, without nested phases."""

    name: str
    seconds: tuple[float, ...]


class RankSteps(Part, frozen=True, kw_only=True, dict=True):
    """The judged steps of one rank; the same index is the same step on every rank."""

    place: RankPlace
    phases: tuple[Phase, ...]
    """In the order of PHASES; they add up to the step. Phases that were not seen are missing."""
    cpu: tuple[float, ...] = ()
    """Seconds of the main thread on a CPU, for each step; empty: not seen."""
    samples: tuple[int, ...] = ()
    """First dimension of the model's inputs over all its calls, for each step."""
    elements: tuple[int, ...] = ()
    """Numbers in the model's input tensors (for text: tokens), for each step."""
    forwards: tuple[int, ...] = ()
    """Calls of the model in training mode, for each step."""
    backwards: tuple[int, ...] = ()
    synced_backwards: tuple[int, ...] = ()
    """Backward passes in which DDP reduced the gradients, for each step."""
    optimizer_steps: tuple[int, ...] = ()
    """Number of optimizer steps, of any optimizer, for each step; empty: not seen."""

    @cached_property
    def by_name(self) -> Mapping[str, tuple[float, ...]]:
        """Seconds in each step, by phase."""
        return {phase.name: phase.seconds for phase in self.phases}

    @cached_property
    def seconds(self) -> tuple[float, ...]:
        """Seconds of each step, from the end of one to the end of the next."""
        return tuple(map(sum, zip(*(phase.seconds for phase in self.phases), strict=True)))

    @cached_property
    def local(self) -> tuple[float, ...]:
        """Seconds of local work in each step: all phases but waiting and transfer."""
        own = [phase.seconds for phase in self.phases if phase.name not in BETWEEN_RANKS]
        return tuple(map(sum, zip(*own, strict=True)))

    def typical(self, phase: str) -> float:
        """Median seconds of a phase per step; 0 if it was not seen."""
        seconds = self.by_name.get(phase, ())
        return median(seconds) if seconds else 0.0

    def total(self, phase: str) -> float:
        """Seconds of a phase, summed over all steps."""
        return sum(self.by_name.get(phase, ()))


class Wait(Part, frozen=True, kw_only=True):
    """Seconds for which one rank waited for another in collectives, over all judged steps."""

    waiter: int
    late: int
    """The rank that arrived last."""
    seconds: float


class Steps(Section, frozen=True, kw_only=True, dict=True):
    """The training steps after the warm-up."""

    commands: ClassVar[tuple[Command, ...]] = ("run",)

    ranks: tuple[RankSteps, ...]
    warm_up: int
    """Number of steps before the first judged step."""
    clock: Literal["host", "cuda"] = "host"
    """Clock of the times: the main thread's, or the GPU stream's."""
    waits: tuple[Wait, ...] = ()

    @property
    def count(self) -> int:
        """Number of judged steps."""
        return min((len(rank.seconds) for rank in self.ranks), default=0)

    @cached_property
    def step(self) -> float:
        """Mean seconds of a step over judged steps and ranks; throughput is its inverse."""
        seconds = [one for rank in self.ranks for one in rank.seconds]
        return sum(seconds) / len(seconds) if seconds else 0.0

    def share(self, phase: str, rank: RankSteps) -> float:
        """Share of a rank's time in a phase, over all steps, 0 to 1."""
        whole = sum(rank.seconds)
        return rank.total(phase) / whole if whole else 0.0


class HotLine(Part, frozen=True, kw_only=True):
    """A line of the user's code that the main thread was sampled in."""

    phase: str
    file: str
    line: int
    function: str
    text: str
    """The source line, stripped; empty: the source is unreadable."""
    samples: int
    inner: str = ""
    """The innermost library frame, as file:function; empty: the user's own."""


class RankLines(Part, frozen=True, kw_only=True):
    """Sampled lines of one rank, most frequent first."""

    rank: int
    samples: int
    """Number of samples during the judged steps."""
    lines: tuple[HotLine, ...]


class Lines(Section, frozen=True, kw_only=True):
    """Lines of the main thread, sampled several times a second."""

    commands: ClassVar[tuple[Command, ...]] = ("run",)

    ranks: tuple[RankLines, ...]

    def of(self, rank: int, phase: str) -> tuple[HotLine, ...]:
        """The lines of one rank in one phase, most frequent first."""
        lines = (line for one in self.ranks if one.rank == rank for line in one.lines)
        return tuple(line for line in lines if line.phase == phase)


class Growth(Part, frozen=True, kw_only=True):
    """Memory of one rank over time, during the judged steps."""

    rank: int
    host: str
    times: tuple[float, ...]
    """Seconds since the first reading."""
    steps: tuple[int, ...]
    """Number of completed steps at each of these times."""
    resident: tuple[float, ...]
    """MiB of the rank's process, without file pages."""
    workers: tuple[float, ...] = ()
    """MiB of all its DataLoader workers together; empty: it has none."""
    device: tuple[float, ...] = ()
    """MiB allocated on its GPU; empty: no GPU."""
    device_between: float | None = None
    """MiB allocated between two steps, without gradients; None: not seen."""
    device_peak: float | None = None
    """Peak MiB allocated since the process started; None: no GPU."""
    device_reserved: float | None = None
    """Peak MiB reserved by the allocator; None: no GPU."""
    device_total: float | None = None
    """MiB of the device; None: no GPU."""
    graph_tensors: int | None = None
    """Tensors with an autograd graph that are alive between two steps at the end; None: not
    counted."""
    graph_tensors_before: int | None = None
    """The same number before the judged steps."""
    graph_depth: int | None = None
    """Longest chain of additions in the graph of such a tensor. Residual connections are such
    chains too, so only growth counts."""
    graph_depth_before: int | None = None
    """The same length before the judged steps."""


class MemoryOverTime(Section, frozen=True, kw_only=True):
    """Memory of all ranks during the training."""

    commands: ClassVar[tuple[Command, ...]] = ("run",)

    ranks: tuple[Growth, ...]
