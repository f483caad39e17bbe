"""What the main thread of each rank loses to other Python threads of the script."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ddoctor.analysis.derived import Derived
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.steps import RankSteps, Steps
from ddoctor.evidence.threads import ScriptThread, ScriptThreads
from ddoctor.evidence.training import RankHost, RankUse

# In these the main thread computes, or launches kernels. On a GPU another thread runs the backward
# pass, for which the main thread sleeps.
ON_CPU = ("forward", "backward", "optimizer")
ON_GPU = ("forward", "optimizer")
# A thread runs at least as long as it keeps the interpreter; the rest is waiting for a CPU.
EXPLAINS = 0.5


@dataclass(frozen=True)
class Loss:
    """What one rank loses."""

    place: RankPlace
    seconds: float
    """Seconds of a step in which the main thread is neither on a CPU nor in its queue, though it
    computes; at least."""
    line: Frame
    """Where the busiest other threads are."""
    cpus: float
    """CPUs that these threads use."""


@dataclass(frozen=True)
class InterpreterLock(Derived):
    """The ranks whose other threads may keep the interpreter from the main thread."""

    step: float
    """Mean seconds of a step."""
    losses: Sequence[Loss]

    @classmethod
    def derive(cls, steps: Steps, script_threads: ScriptThreads, use: RankUse) -> InterpreterLock:
        """Compare the passes of each rank with the CPU time of its main thread."""
        hosts = {one.rank: one for one in use.hosts}
        busy = _busiest(script_threads.threads)
        losses = []
        for rank in steps.ranks:
            host, found = hosts.get(rank.place.rank), busy.get(rank.place.rank)
            if host is None or host.waited is None or found is None or _crowded(host):
                continue
            seconds, (line, cpus) = _lost(rank, host.waited), found
            if 0 < EXPLAINS * seconds <= cpus * fmean(rank.seconds):
                losses.append(Loss(place=rank.place, seconds=seconds, line=line, cpus=cpus))
        return cls(step=steps.step, losses=losses)


def _lost(rank: RankSteps, waited: float) -> float:
    """``waited``: share of the time in the queue for a CPU."""
    if not rank.cpu:
        return 0.0
    passes = rank.spent(*(ON_CPU if rank.place.device == "cpu" else ON_GPU))
    # All of its CPU time, that of other phases too: so this is the least.
    return fmean(passes) - fmean(rank.cpu) - waited * fmean(rank.seconds)


def _crowded(host: RankHost) -> bool:
    """Whether threads of torch may have to wait for each other, too."""
    return host.threads * host.local_ranks > max(1, len(host.affinity) or host.host_cpus)


def _busiest(threads: Sequence[ScriptThread]) -> Mapping[int, tuple[Frame, float]]:
    """Of each rank, the line whose threads use most CPUs together, and these."""
    used: dict[int, dict[Frame, float]] = defaultdict(lambda: defaultdict(float))
    for one in threads:
        used[one.rank][one.place] += one.cpus
    return {rank: max(rows.items(), key=lambda row: row[1]) for rank, rows in used.items()}
