"""Where the time of each training step went, on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from statistics import median
from typing import ClassVar, Literal

from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Part, Section

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
"""What a step is made of, in the order in which it is drawn. ``waiting`` is the time in collectives
until the last rank has come, ``transfer`` the time in them after that."""

BETWEEN_RANKS = ("waiting", "transfer")
"""What is no work of the rank's own."""


class Phase(Part, frozen=True, kw_only=True):
    """One phase of one rank: seconds of each step, without what is nested in it."""

    name: str
    seconds: tuple[float, ...]


class RankSteps(Part, frozen=True, kw_only=True, dict=True):
    """The judged steps of one rank; the same index is the same step on every rank."""

    place: RankPlace
    phases: tuple[Phase, ...]
    """In the order of PHASES; together they are the step. What could not be seen is missing."""
    cpu: tuple[float, ...] = ()
    """Of each step, seconds in which the main thread was on a CPU; empty: not seen."""
    samples: tuple[int, ...] = ()
    """Of each step, the first dimension of what the model was given, over all its calls."""
    elements: tuple[int, ...] = ()
    """Of each step, the numbers in the tensors that the model was given (of text: tokens)."""
    forwards: tuple[int, ...] = ()
    """Of each step, the calls of the model in training."""
    backwards: tuple[int, ...] = ()
    synced_backwards: tuple[int, ...] = ()
    """Of each step, the backward passes in which DDP reduced the gradients."""
    optimizer_steps: tuple[int, ...] = ()
    """Of each step, how often any optimizer stepped; empty: not seen."""

    @cached_property
    def by_name(self) -> Mapping[str, tuple[float, ...]]:
        """Seconds of each step, by phase."""
        return {phase.name: phase.seconds for phase in self.phases}

    @cached_property
    def seconds(self) -> tuple[float, ...]:
        """Of each step, from the end of one to the end of the next."""
        return tuple(map(sum, zip(*(phase.seconds for phase in self.phases), strict=True)))

    @cached_property
    def local(self) -> tuple[float, ...]:
        """Of each step, the seconds of the rank's own work: all but waiting and transfer."""
        own = [phase.seconds for phase in self.phases if phase.name not in BETWEEN_RANKS]
        return tuple(map(sum, zip(*own, strict=True)))

    def typical(self, phase: str) -> float:
        """Seconds of a phase in the median step; 0 where it was not seen."""
        seconds = self.by_name.get(phase, ())
        return median(seconds) if seconds else 0.0

    def total(self, phase: str) -> float:
        """Seconds of a phase in all steps."""
        return sum(self.by_name.get(phase, ()))


class Wait(Part, frozen=True, kw_only=True):
    """How long one rank waited for another in collectives, over all judged steps."""

    waiter: int
    late: int
    """The rank that came last."""
    seconds: float


class Steps(Section, frozen=True, kw_only=True, dict=True):
    """The training steps after the warm-up."""

    of_training: ClassVar[bool] = True

    ranks: tuple[RankSteps, ...]
    warm_up: int
    """Steps before the first one here."""
    clock: Literal["host", "cuda"] = "host"
    """Whose time: of the main thread, or of the GPU's stream."""
    waits: tuple[Wait, ...] = ()

    @property
    def count(self) -> int:
        """How many steps were judged."""
        return min((len(rank.seconds) for rank in self.ranks), default=0)

    @cached_property
    def step(self) -> float:
        """Seconds of a step, the mean over judged steps and ranks: throughput is its inverse."""
        seconds = [one for rank in self.ranks for one in rank.seconds]
        return sum(seconds) / len(seconds) if seconds else 0.0

    def share(self, phase: str, rank: RankSteps) -> float:
        """What part of a rank's time a phase is, over all steps; 0 to 1."""
        whole = sum(rank.seconds)
        return rank.total(phase) / whole if whole else 0.0


class HotLine(Part, frozen=True, kw_only=True):
    """A line of the user's own code at which the main thread was met."""

    phase: str
    file: str
    line: int
    function: str
    text: str
    """The line itself, stripped; empty: the source could not be read."""
    samples: int
    inner: str = ""
    """The innermost frame that it was in, as file:function of a library; empty: its own."""


class RankLines(Part, frozen=True, kw_only=True):
    """Where one rank was met, the most frequent lines first."""

    rank: int
    samples: int
    """All of them, during the judged steps."""
    lines: tuple[HotLine, ...]


class Lines(Section, frozen=True, kw_only=True):
    """Which lines the ranks were met at, by looking at the main thread some times a second."""

    of_training: ClassVar[bool] = True

    ranks: tuple[RankLines, ...]

    def of(self, rank: int, phase: str) -> tuple[HotLine, ...]:
        """The lines of one rank in one phase, the most frequent first."""
        lines = (line for one in self.ranks if one.rank == rank for line in one.lines)
        return tuple(line for line in lines if line.phase == phase)


class Growth(Part, frozen=True, kw_only=True):
    """The memory of one rank over time, during the judged steps."""

    rank: int
    host: str
    times: tuple[float, ...]
    """Seconds since the first of them."""
    steps: tuple[int, ...]
    """How many steps were done at each of these times."""
    resident: tuple[float, ...]
    """MiB of the rank's process, without the pages of files."""
    workers: tuple[float, ...] = ()
    """MiB of all its DataLoader workers together; empty: it has none."""
    device: tuple[float, ...] = ()
    """MiB allocated on its GPU; empty: none."""
    device_between: float | None = None
    """MiB allocated there between two steps, without gradients; None: not seen."""
    device_peak: float | None = None
    """MiB, the most that was allocated there since the process began; None: no GPU."""
    device_reserved: float | None = None
    """MiB, the most that the allocator had of it."""
    device_total: float | None = None
    """MiB of the device."""
    graph_tensors: int | None = None
    """Tensors with a graph behind them that were still held at the end, between two steps; None:
    not counted."""
    graph_tensors_before: int | None = None
    """The same before the judged steps."""
    graph_depth: int | None = None
    """The longest chain of accumulations behind one of them; the residual connections of a model
    are such a chain too, so what grows is what counts."""
    graph_depth_before: int | None = None
    """The same before the judged steps."""


class MemoryOverTime(Section, frozen=True, kw_only=True):
    """The memory of all ranks while they trained."""

    of_training: ClassVar[bool] = True

    ranks: tuple[Growth, ...]
