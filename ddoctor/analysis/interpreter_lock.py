"""What the main thread of each rank loses to other Python threads of the script, on CPUs.

A run on GPUs is not judged: its passes are timed on the device, and its main thread sleeps in some
waits for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ddoctor.analysis.live_ranks import IN_ENGINE, LiveRankState
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.steps import RankSteps, Steps
from ddoctor.evidence.threads import ScriptThread
from ddoctor.evidence.training import RankHost, RankUse
from ddoctor.models import Placed

FORWARD = "forward"
PASSES = (FORWARD, "backward", "optimizer")
"""In these the main thread computes."""
# A thread runs at least as long as it keeps the interpreter; the rest is waiting for a CPU.
EXPLAINS = 0.5
# CPUs of a thread that hardly ever waits.
COMPUTES = 0.5
# Loud, as fail-slow detection counts it; equal ranks differ by less than a tenth.
LONGER = 1.3


@dataclass(frozen=True)
class Loss:
    """What one rank loses."""

    place: Placed
    share: float
    """Share of the time in which the main thread is neither on a CPU nor in its queue, though it
    computes; at least."""
    line: Frame
    """Where the busiest other threads are."""
    cpus: float
    """CPUs that these threads use."""


def in_steps(steps: Steps, threads: Sequence[ScriptThread], use: RankUse) -> Iterator[Loss]:
    """Of each rank: its recorded passes against the CPU time of its main thread."""
    hosts = {one.rank: one for one in use.hosts}
    for rank in steps.ranks if steps.clock == "host" else ():
        host = hosts.get(rank.place.rank)
        if rank.cpu and host is not None and host.waited is not None and not crowded(host):
            yield from _known(rank.place, _of_steps(rank, host.waited), threads)


def in_a_live_run(live: LiveState, threads: Sequence[ScriptThread]) -> Iterator[Loss]:
    """Of each rank: its sampled passes against the time in which its main thread can run."""
    forwards = {rank.rank: rank.seen.share(FORWARD) for rank in live.ranks}
    using = {rank.rank for rank in live.ranks if busy(threads, rank.rank)}
    for rank in live.ranks:
        if rank.seen.asleep is not None and not rank.stands and not rank.seen.on_gpu:
            passes = sum(map(rank.seen.share, PASSES))
            others = [share for one, share in forwards.items() if one not in using]
            # A backward pass that reduces gradients may sleep for others. Where the forward pass
            # takes longer than on ranks without such a thread, it sleeps for the interpreter.
            if others and forwards[rank.rank] >= LONGER * median(others) > 0:
                passes += rank.seen.share(IN_ENGINE)
            runs = 1 - rank.seen.asleep
            if using == {rank.rank} and _is_late_with(rank, live, threads):
                # The thread takes what the main thread then waits for: the interpreter, or a CPU.
                runs = min(runs, rank.seen.main_cpu_seconds / rank.seconds)
            yield from _known(rank, passes - runs, threads)


def _is_late_with(rank: LiveRankState, live: LiveState, threads: Sequence[ScriptThread]) -> bool:
    """Whether it waits less for others than they do, and a thread of it computes all the time."""
    most = max(busy(threads, rank.rank).values(), default=0.0)
    return most >= COMPUTES and rank is min(live.ranks, key=lambda one: one.waiting)


def _of_steps(rank: RankSteps, waited: float) -> float:
    """``waited``: share of the time in the queue for a CPU."""
    passes = rank.spent(*PASSES)
    # All of its CPU time, that of other phases too: so this is the least.
    return (fmean(passes) - fmean(rank.cpu)) / fmean(rank.seconds) - waited


def _known(place: Placed, share: float, threads: Sequence[ScriptThread]) -> Iterator[Loss]:
    """The loss, if other threads are busy enough to explain it."""
    line, cpus = max(busy(threads, place.rank).items(), key=lambda row: row[1], default=(None, 0))
    if line is not None and 0 < EXPLAINS * share <= cpus:
        yield Loss(place=place, share=share, line=line, cpus=cpus)


def busy(threads: Sequence[ScriptThread], rank: int) -> Mapping[Frame, float]:
    """Return the CPUs that the threads of a rank use together, by the line at which they are."""
    used: dict[Frame, float] = defaultdict(float)
    for one in threads:
        if one.rank == rank:
            used[one.place] += one.cpus
    return used


def crowded(host: RankHost) -> bool:
    """Whether threads of torch may have to wait for each other, too."""
    return host.threads * host.local_ranks > max(1, len(host.affinity) or host.host_cpus)
