"""Time of each training step by phase, on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from statistics import fmean, median
from typing import Literal, get_args

from ddoctor.evidence.frames import Block, Frame, Origin
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Part, RunSection, Section, of_one_length

PhaseName = Literal[
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
]
PHASES: tuple[PhaseName, ...] = get_args(PhaseName)
"""The phases of a step, in drawing order. ``waiting`` is the time in collectives until the last
rank arrives, ``transfer`` the time in them after that."""

BETWEEN_RANKS = ("waiting", "transfer")
"""The phases that are not the rank's local work."""


class Phase(Part, frozen=True, kw_only=True):
    """One phase of one rank: seconds in each step, without nested phases."""

    name: PhaseName
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
    """Numbers in the model's input tensors (for text: tokens), for each step; in a trace: in those
    of all operators of the forward pass."""
    forwards: tuple[int, ...] = ()
    """Calls of the model in training mode, for each step."""
    backwards: tuple[int, ...] = ()
    synced_backwards: tuple[int, ...] = ()
    """Backward passes in which DDP reduced the gradients, for each step."""
    optimizer_steps: tuple[int, ...] = ()
    """Number of optimizer steps, of any optimizer, for each step; empty: not seen."""
    pageable_bytes: tuple[int, ...] = ()
    """Bytes that the script copied to the GPU from pageable memory, for each step; empty: not
    seen."""
    pinned_bytes: tuple[int, ...] = ()
    """Bytes that the script copied to the GPU from pinned memory, for each step; empty: not
    seen."""
    idle_forwards: tuple[int, ...] = ()
    """Forward passes at whose end the GPU had nothing left to do, for each step; empty: not
    seen."""
    idle_backwards: tuple[int, ...] = ()
    """Backward passes at whose end the GPU had nothing left to do, for each step; empty: not
    seen."""

    def __post_init__(self) -> None:
        names = [phase.name for phase in self.phases]
        if len(set(names)) < len(names):
            raise ValueError(f"a phase of rank {self.place.rank} appears twice")
        if len({len(phase.seconds) for phase in self.phases}) > 1:
            raise ValueError(f"the phases of rank {self.place.rank} have different lengths")
        if self.seconds and sum(self.seconds) <= 0:
            raise ValueError(f"the steps of rank {self.place.rank} take no time")
        of_one_length(
            phases=self.phases[0].seconds if self.phases else (),
            cpu=self.cpu,
            samples=self.samples,
            elements=self.elements,
            forwards=self.forwards,
            backwards=self.backwards,
            synced_backwards=self.synced_backwards,
            optimizer_steps=self.optimizer_steps,
            pageable_bytes=self.pageable_bytes,
            pinned_bytes=self.pinned_bytes,
            idle_forwards=self.idle_forwards,
            idle_backwards=self.idle_backwards,
        )

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
        return self.spent(*(name for name in PHASES if name not in BETWEEN_RANKS))

    def spent(self, *phases: str) -> tuple[float, ...]:
        """Seconds of these phases together in each step; 0 if they were not seen."""
        rows = [phase.seconds for phase in self.phases if phase.name in phases]
        return tuple(map(sum, zip(*rows, strict=True))) if rows else (0.0,) * len(self.seconds)

    def typical(self, phase: str) -> float:
        """Median seconds of a phase per step; 0 if it was not seen."""
        return median(self.spent(phase) or (0.0,))

    def total(self, phase: str) -> float:
        """Seconds of a phase, summed over all steps."""
        return sum(self.spent(phase))

    def share(self, *phases: str) -> float:
        """Share of its time in these phases, over all steps, 0 to 1."""
        whole = sum(self.seconds)
        return sum(self.spent(*phases)) / whole if whole else 0.0


class Wait(Part, frozen=True, kw_only=True):
    """Seconds for which one rank waited for another in collectives, over all judged steps."""

    waiter: int
    late: int
    """The rank that arrived last."""
    seconds: float


class Steps(Section, frozen=True, kw_only=True, dict=True):
    """The training steps after the warm-up."""

    commands = ("run", "diagnose")

    ranks: tuple[RankSteps, ...]
    warm_up: int
    """Number of steps before the first judged step."""
    clock: Literal["host", "cuda"] = "host"
    """Clock of the times: the main thread's, or the GPU stream's."""
    waits: tuple[Wait, ...] = ()
    traced: bool = False
    """Whether they are those in traces of a profiler, which are few."""
    complete: bool = True
    """Whether all ranks of the run are among them; if not, waiting may be transfer as well."""

    def __post_init__(self) -> None:
        if len({len(phase.seconds) for rank in self.ranks for phase in rank.phases[:1]}) > 1:
            raise ValueError("the ranks have different numbers of steps")

    @property
    def count(self) -> int:
        """Number of judged steps."""
        return min((len(rank.seconds) for rank in self.ranks), default=0)

    @property
    def synced(self) -> bool | None:
        """Whether DDP reduced gradients in any backward pass; None: not recorded."""
        counts = [count for rank in self.ranks for count in rank.synced_backwards]
        return any(counts) if counts else None

    @cached_property
    def step(self) -> float:
        """Mean seconds of a step over judged steps and ranks; throughput is its inverse."""
        seconds = [one for rank in self.ranks for one in rank.seconds]
        return sum(seconds) / len(seconds) if seconds else 0.0

    @cached_property
    def seconds(self) -> tuple[float, ...]:
        """Seconds of each step, the mean of all ranks."""
        return tuple(map(fmean, zip(*(rank.seconds for rank in self.ranks), strict=True)))

    def share(self, phase: str) -> float:
        """Share of the mean rank's time in a phase, over all steps, 0 to 1."""
        return fmean(rank.share(phase) for rank in self.ranks) if self.ranks else 0.0


COLLECT = "gc:collect"


class HotLine(Part, frozen=True, kw_only=True):
    """A line of the user's code that the main thread was sampled in."""

    phase: str
    file: str
    line: int
    function: str
    text: str
    """The source line, stripped; empty: the source is unreadable."""
    samples: int
    late: int = 0
    """Those of the later half of the judged steps."""
    inner: str = ""
    """The innermost library frame, as file:function; empty: the user's own. ``COLLECT`` of a
    collection of garbage that the script or a library asks for."""
    hook: bool = False
    """A hook of a tensor leads to it, in ``rest``, or one of a module, in a pass."""
    after: str = ""
    """The last of the step's phases before this one: loader, forward, backward, optimizer."""
    calls: tuple[Frame, ...] = ()
    """The outermost user's frames that lead into the phase, innermost last; of ``rest`` to this
    line."""
    within: tuple[Block, ...] = ()
    """Loops and branches around these frames."""
    origins: tuple[Origin, ...] = ()
    """In a pass of the model: statements whose values these frames read, directly or not."""

    @property
    def frame(self) -> Frame:
        """The line as a frame of the user's."""
        return Frame(
            file=self.file, line=self.line, function=self.function, text=self.text, of_user=True
        )


class RankLines(Part, frozen=True, kw_only=True):
    """Sampled lines of one rank, most frequent first."""

    rank: int
    samples: int
    """Number of samples during the judged steps."""
    lines: tuple[HotLine, ...]

    def __post_init__(self) -> None:
        if self.lines and min(self.samples, *(one.samples for one in self.lines)) < 1:
            raise ValueError(f"rank {self.rank} has lines without samples")

    def share(self, line: HotLine, *phases: str) -> float:
        """Share of its samples at this line, in these phases or in any, 0 to 1."""
        same = (
            one
            for one in self.lines
            if (one.file, one.line) == (line.file, line.line)
            and (not phases or one.phase in phases)
        )
        return sum(one.samples for one in same) / self.samples


class Lines(RunSection, frozen=True, kw_only=True):
    """Lines of the main thread, sampled several times a second."""

    ranks: tuple[RankLines, ...]

    def of(self, rank: int, *phases: str) -> tuple[HotLine, ...]:
        """The lines of one rank in these phases, most frequent first."""
        lines = (line for one in self.ranks if one.rank == rank for line in one.lines)
        return tuple(line for line in lines if line.phase in phases)


class Cache(Part, frozen=True, kw_only=True):
    """A cache of ``functools`` without a limit, that grew during the judged steps."""

    file: str
    line: int
    """Of the function, or of its first decorator."""
    function: str
    added: int
    """Entries that it got."""
    hits: int
    """Calls that it answered."""


class AddedHooks(Part, frozen=True, kw_only=True):
    """Hooks of modules with one function of the script, that it added during the judged steps."""

    number: int
    line: Frame
    """That registers them, or of the function if its file has several such lines."""


class Growth(Part, frozen=True, kw_only=True):
    """Memory of one rank over time, during the judged steps, in MiB."""

    rank: int
    host: str
    times: tuple[float, ...]
    """Seconds since the first reading."""
    steps: tuple[int, ...]
    """Number of completed steps at each of these times."""
    resident: tuple[float, ...]
    """MiB of the rank's process, without file pages."""
    malloc_free: tuple[float, ...] = ()
    """MiB of it that malloc keeps free for later, in glibc's heaps; empty: not known."""
    workers: tuple[float, ...] = ()
    """MiB of all its DataLoader workers together; empty: it has none."""
    workers_free: tuple[float, ...] = ()
    """MiB of them that malloc keeps free for later; empty: not known."""
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
    """Live tensors with an autograd graph between two steps at the end; before: at the begin."""
    graph_tensors_before: int | None = None
    keeps: tuple[Frame, ...] = ()
    """Statements of the loop that store a loss with its graph, where such tensors have grown."""
    caches: tuple[Cache, ...] = ()
    """Caches without a limit that grew in the process itself, by growth."""
    graph_depth: int | None = None
    """Longest chain of additions in such a graph. Residual connections are chains, too."""
    graph_depth_before: int | None = None
    hooks: AddedHooks | None = None
    """None: there are no more hooks at the end than at the begin, or it was not seen."""

    def __post_init__(self) -> None:
        of_one_length(
            times=self.times,
            steps=self.steps,
            resident=self.resident,
            malloc_free=self.malloc_free,
            workers=self.workers,
            workers_free=self.workers_free,
            device=self.device,
        )

    @property
    def used(self) -> tuple[float, ...]:
        """MiB of the process without what malloc keeps free, which may be hundreds on a CPU."""
        return _without(self.resident, self.malloc_free)

    @property
    def workers_used(self) -> tuple[float, ...]:
        """MiB of its DataLoader workers without what malloc keeps free in them."""
        return _without(self.workers, self.workers_free)

    @property
    def last(self) -> float:
        """MiB of the process and its workers at the last reading."""
        return sum(amounts[-1] for amounts in (self.resident, self.workers) if amounts)


def _without(resident: tuple[float, ...], free: tuple[float, ...]) -> tuple[float, ...]:
    if not (free and resident):
        return resident
    return tuple(a - b for a, b in zip(resident, free, strict=True))


class MemoryOverTime(RunSection, frozen=True, kw_only=True):
    """Memory of all ranks during the training."""

    ranks: tuple[Growth, ...]
