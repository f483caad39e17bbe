"""The state of each rank of a live run: whether it waits, works or is stuck, and where."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddoctor.analysis import endings, gpu_lines
from ddoctor.evidence.frames import OF_A_RANK, Block, Frame
from ddoctor.evidence.live import Activity, LiveRank
from ddoctor.evidence.steps import PHASES
from ddoctor.models import Fix, Observation

# Below that it may be one slow step: ranks of ordinary training move within a second or two.
SHORTEST_SECONDS = 3.0
# Share of the sampled time on a CPU; above, the thread works at its line.
WORKS = 0.5
# Per second. A thread that waits for one batch checks its workers every 5 s
# (MP_STATUS_CHECK_INTERVAL of torch/utils/data). A received batch wakes it once, and up to five
# times if memory is shared by file descriptors.
WAKES = 10.0
# Reads and writes that are no progress: a line of a log, a heartbeat of a launcher.
LEAST_MIB = 1.0
# In these a rank waits for other ranks, whatever they do.
FOR_OTHERS = ("collective", "joining")
FOR_WORKERS = "loader-wait"
# Held from outside: no sample of the stack is needed.
HELD = {
    "stopped": "stopped by a signal (SIGSTOP, Ctrl-Z, a job scheduler)",
    "tracing-stop": "held by a debugger or tracer",
    "disk-sleep": "asleep in the kernel, in a read or write that does not return",
}
# The names of psutil, and of ddoctor, for a process that ended while it was sampled.
RUNS = "running"
"""The name of psutil for a process on a CPU."""
ENDED = ("zombie", "gone")
# Calls between two ranks; each needs the other one.
MESSAGES = ("send", "recv")
IN_ENGINE = "backward-or-wait"
IN_COLLECTION = "gc"
OWN_LOADER = "own-loader"
"""The script makes its batches itself, without a DataLoader."""
# A line of the script that starts a garbage collection.
COLLECTS = "collect("
PHASE_OF = {
    **dict.fromkeys(FOR_OTHERS, "waiting"),
    **dict.fromkeys(("loader-wait", "loader-start", OWN_LOADER), "loader"),
    IN_ENGINE: "backward",
    **dict.fromkeys(("import", "logging", gpu_lines.AT_GPU), "rest"),
    "compile": "forward",
}
"""The phase of a step for activities with another name."""
FEWEST_SAMPLES = 20
# What happens this often within the samples happens again after them.
AGAIN = 3
# Share of the time: below, waits for an occasional straggler look like transfers.
MOSTLY = 0.6


@dataclass(frozen=True, kw_only=True)
class LiveRankState:
    """One rank of a job."""

    host: str
    seconds: float
    """For how long it was sampled."""
    seen: LiveRank
    dumped: bool = False
    """Whether only a dump of its stack is known."""

    @property
    def rank(self) -> int:
        """Its number."""
        return self.seen.rank

    @property
    def held(self) -> str:
        """What holds it from outside, such as a signal; empty: nothing."""
        return HELD.get(self.seen.state, "")

    @property
    def ended(self) -> bool:
        """Whether it ended while it was sampled."""
        return self.seen.state in ENDED

    @property
    def stands(self) -> bool:
        """Whether it was seen at one place only, or not at all."""
        return bool(self.held or self.seen.unseen) or self.seen.still

    @property
    def works(self) -> bool:
        """Whether its main thread was on a CPU for most of the time."""
        if self.dumped:
            return self.seen.state == RUNS
        return self.seen.main_cpu_seconds > WORKS * self.seconds

    @property
    def hung(self) -> bool:
        """Whether it is held from outside, or was sampled at one place only, without progress."""
        long = self.dumped or self.seconds >= SHORTEST_SECONDS
        return long and not self.ended and (bool(self.held) or (self.seen.still and not self.moves))

    @property
    def moves(self) -> bool:
        """Whether it makes progress at its place: it computes, reads, writes or gets batches."""
        return (self.works and not self.waits) or self.seen.moved >= LEAST_MIB or self.gets_batches

    @property
    def gets_batches(self) -> bool:
        """Whether its workers deliver one batch after the other, and it waits for each."""
        woken = not self.dumped and self.seen.wakes >= WAKES * self.seconds
        return self.doing == FOR_WORKERS and woken

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks, as far as its stack shows."""
        if self.held:
            return False
        # In native code of the backward pass, DDP waits for gradients.
        asleep = self.doing == IN_ENGINE and not self.works
        return self.doing in FOR_OTHERS or asleep or self.at_gpu

    @property
    def at_gpu(self) -> bool:
        """Whether it waits for its GPU, which in a stuck run waits for other ranks."""
        return self.seen.on_gpu and gpu_lines.waits(self.seen.stack)

    def share(self, counts: Callable[[Activity], bool]) -> float:
        """The share of the time in these activities, 0 to 1."""
        return sum(row.samples for row in self.seen.activities if counts(row)) / self.seen.samples

    @property
    def waiting(self) -> float:
        """The share of the time that it waited for other ranks, 0 to 1."""
        return sum(self.seen.share(name) for name in FOR_OTHERS) + self.in_reduction_share

    @property
    def shares(self) -> Mapping[str, float]:
        """The share of the time in each phase of a step, 0 to 1, by the names of PHASES."""
        asleep = self.in_reduction_share
        found: dict[str, float] = {**dict.fromkeys(PHASES, 0.0)}
        found |= {"waiting": asleep, "backward": -asleep}
        for met in self.seen.activities if self.seen.samples else ():
            found[phase(met.name)] += met.samples / self.seen.samples
        return {phase: share for phase, share in found.items() if share > 0}

    @property
    def in_reduction_share(self) -> float:
        """The share of the time that it slept in the backward pass, 0 to 1."""
        asleep = self.seen.asleep if self.seen.asleep is not None else 1.0
        # It sleeps in each collective and in each wait for a worker as well.
        elsewhere = sum(map(self.seen.share, (*FOR_OTHERS, FOR_WORKERS)))
        return min(self.seen.share(IN_ENGINE), max(0.0, asleep - elsewhere))

    @property
    def doing(self) -> str:
        """Its most frequent activity; empty: its stack was not sampled."""
        return self.seen.activities[0].name if self.seen.activities else ""

    @property
    def line(self) -> Frame | None:
        """The innermost line of the user's code."""
        return next((frame for frame in reversed(self.seen.stack) if frame.of_user), None)

    @property
    def within(self) -> tuple[Block, ...]:
        """The loops and branches around its most frequent line."""
        return self.seen.activities[0].within if self.seen.activities else ()

    def has_left(self, loop: Block, inside: LiveRankState) -> bool:
        """Whether it is after this loop, or after the call of it, with another rank inside.

        If only one of them is in a branch around the loop, it may never have come to it.
        """
        outer = inside.within[: inside.within.index(loop) + 1]
        if loop in self.within or not all(block.loop or block in self.within for block in outer):
            return False
        for own, other in zip(_users(self), _users(inside), strict=False):
            if (own.file, own.function) != (other.file, other.function):
                return False
            if own.line != other.line:
                here = (own.file, own.function) == (loop.file, loop.function)
                return own.line > (loop.end if here else other.line)
        return False

    @property
    def surely(self) -> bool:
        """Whether the user's line calls the collective directly, and without a condition."""
        inner = itertools.takewhile(lambda frame: not frame.of_user, reversed(self.seen.stack))
        only = all(DISTRIBUTED in frame.file for frame in inner)
        return only and self.line is not None and not DECIDES.search(self.line.text)

    def is_before(self, other: LiveRankState) -> bool:
        """Whether the other rank is at a later line of the same function, loops and branches.

        Then the other rank has already passed the line of this rank.
        """
        here = {(frame.file, frame.function): frame.line for frame in self.seen.stack}
        return self.within == other.within and any(
            frame.of_user and here.get((frame.file, frame.function), frame.line) < frame.line
            for frame in other.seen.stack
        )

    @property
    def where(self) -> str:
        """Return ``in all_reduce at train.py:30``; ``somewhere`` if nothing is known."""
        what = self.operation
        place = self.place
        if what and place:
            return f"in {what} at {place}"
        return f"at {place}" if place else f"in {what}" if what else "somewhere"

    @property
    def operation(self) -> str:
        """The collective or the phase that it is in."""
        if self.doing == "collective":
            for frame in reversed(self.seen.stack):
                name = frame.bare
                if frame.file.endswith("distributed_c10d.py") and name not in WRAPPERS:
                    return name
            # It waits for what was begun before.
            if begun := self.seen.activities[0].makes:
                return begun
        if self.doing == "joining":
            return "init_process_group"
        if self.doing.startswith("backward"):
            return "backward"
        plain = ("rest", gpu_lines.AT_GPU, OWN_LOADER)
        return "" if self.doing in plain else self.doing.removesuffix("-wait")

    @property
    def exchanges(self) -> bool:
        """Whether it waits to send to one rank, or to receive from one."""
        return self.operation in MESSAGES

    @property
    def place(self) -> str:
        """The user's line, such as ``train.py:30 in main``; empty: not known."""
        return endings.place(self.line)

    @property
    def who(self) -> str:
        """The rank with its process and host, as far as they are known."""
        pid = f"pid {self.seen.pid}" if self.seen.pid else ""
        process = " on ".join(filter(None, (pid, self.host)))
        return f"rank {self.rank} ({process})" if process else f"rank {self.rank}"

    @property
    def throughout(self) -> str:
        """For how long it was seen."""
        return "in a dump" if self.dumped else f"for all of the {self.seconds:.0f} s"


def _users(rank: LiveRankState) -> Iterator[Frame]:
    return (frame for frame in rank.seen.stack if frame.of_user)


DISTRIBUTED = "torch/distributed/"
# Within one line.
DECIDES = re.compile(r"\b(?:if|and|or)\b")


def asks_for_a_rank(block: Block) -> bool:
    """Whether it is a branch for certain ranks, by their number."""
    # In older bundles, only its text tells.
    return not block.loop and (block.of_rank or OF_A_RANK.search(block.text) is not None)


def collects_by_itself(met: Activity) -> bool:
    """Whether it was an automatic garbage collection, not a call of the script."""
    return met.name == IN_COLLECTION and not (met.line is not None and COLLECTS in met.line.text)


def phase(activity: str) -> str:
    """The phase of a step that an activity belongs to, as in PHASES.

    Another version of ddoctor may know activities that this one does not.
    """
    found = PHASE_OF.get(activity, activity)
    return found if found in PHASES else "rest"


# torch/distributed/c10d_logger.py wraps each collective in it.
WRAPPERS = ("wrapper",)


def places(every: Iterable[LiveRankState]) -> Mapping[str, Sequence[LiveRankState]]:
    """The ranks by where they are."""
    groups: dict[str, list[LiveRankState]] = {}
    for one in every:
        groups.setdefault(one.where, []).append(one)
    return groups


def standing(rows: Sequence[LiveRankState]) -> str:
    """Return ``ranks 0-2 wait in all_reduce at train.py:30`` of ranks at one place."""
    one, several = ("waits", "wait") if all(row.waits for row in rows) else ("is", "are")
    return f"{named(rows)} {several if len(rows) > 1 else one} {rows[0].where}"


def subject(rows: Sequence[LiveRankState]) -> str:
    """A single rank with its process and host, or the numbers of several."""
    return rows[0].who if len(rows) == 1 else named(rows)


def named(rows: Sequence[LiveRankState]) -> str:
    """Return ``rank 3``, or ``ranks 0-2, 5``."""
    return endings.ranks(one.rank for one in rows)


def at_places(*groups: Sequence[LiveRankState]) -> tuple[Observation, ...]:
    """Where each group of ranks is, as evidence."""
    return tuple(Observation(name=named(rows), value=rows[0].where) for rows in groups)


def shares(what: str, rows: Mapping[LiveRankState, float]) -> tuple[Observation, ...]:
    """The share of the time, 0 to 1, that each of these ranks spends so, as evidence."""
    return tuple(
        Observation(name=f"{what}, rank {one.rank}", value=round(100 * share), unit="% of time")
        for one, share in rows.items()
    )


def way_there(one: LiveRankState, frames: Sequence[Frame] = ()) -> Iterator[Fix]:
    """The frames of a rank, or its whole stack, to read rather than to paste."""
    yield Fix(summary="read the stack that leads there", paste=stack(one, frames), language="text")


def stack(one: LiveRankState, frames: Sequence[Frame] = ()) -> str:
    """These frames, or the whole stack of the rank, as Python prints it, the innermost last."""
    title = f"# {one.who}"
    return "\n".join([title, *endings.printed(frames or one.seen.stack)])
