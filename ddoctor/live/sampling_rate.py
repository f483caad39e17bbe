"""How often ranks are sampled, and for how long."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from math import ceil

import psutil

from ddoctor.errors import DoctorError
from ddoctor.live.rank_processes import RankProcess

# Samples per second: py-spy then uses less than a hundredth of a core for a rank with few threads.
# In 10 s the share of a tenth is known to 4 % of the time. Never at a low priority: such a sampler
# runs where the ranks wait, and so sees them waiting.
RATE, LEAST_RATE = 20, 1
# Where the ranks and workers need all cores, sampling takes its CPU time from them, and from each
# rank that waits for another: so it is less often, for longer (benchmarks/attach.py), but for as
# many samples as know the share of a tenth to 6 % of the time.
BUSY_RATE, LONGER, BUSY_SAMPLES = 5, 2, 100
# With native frames, each sample pauses the process for milliseconds.
NATIVE_RATE = 10
# py-spy samples all threads of a process, and pauses the process for native frames.
MOST_THREADS = 32
# Share of a core, per thread and sample; measured with 64 threads with a short stack.
THREAD_SECONDS = 60e-6
# Share of all cores of the host: on a busy host, sampling takes it from the training.
AFFORDABLE = 0.004
USUAL_SECONDS, WATCHING_SECONDS = 10.0, 4.0
LEAST_SECONDS, MOST_SECONDS = 3.0, 600.0
# An early result, whether a run hangs, before the usual time for whether it is slow. Each costs
# a start of py-spy, which takes as much CPU time as ten seconds of sampling.
SOON_SECONDS = 3.0
# Samples that these need, and some more, as a few are torn.
SOON_SAMPLES, LEAST_SAMPLES = 6, 26


class SamplingRate:
    """How often the ranks of one job on this host are sampled, and for how long."""

    def __init__(
        self,
        rank_processes: Sequence[RankProcess],
        asked: float | None = None,
        *,
        watch: bool = False,
    ) -> None:
        """``asked``: the seconds; None: as many as a slow run needs to be recognised.

        ``watch``: again and again.
        """
        self.crowded = {one.process.pid: _crowd(one) for one in rank_processes}
        """By PID of the rank: its number of threads if that is too many, else 0."""
        usual, most = WATCHING_SECONDS if watch else USUAL_SECONDS, RATE
        if _need_all_cores(rank_processes):
            usual *= LONGER
            samples = LEAST_SAMPLES if watch else BUSY_SAMPLES
            most = min(RATE, max(BUSY_RATE, ceil(samples / (asked or usual))))
        rate = min(most, rate_at(max(sum(self.crowded.values()), 1)))
        self.rates = {pid: rate if many else most for pid, many in self.crowded.items()}
        """Samples per second, by PID."""
        slowest = min(self.rates.values())
        usual = max(usual, LEAST_SAMPLES / slowest)
        self.seconds = usual if asked is None else asked
        soon = () if watch else (max(SOON_SECONDS, SOON_SAMPLES / slowest), usual)
        self.ends = (
            *(one for one in soon if one + LEAST_SECONDS <= self.seconds),
            self.seconds,
        )
        """The seconds at which to judge the samples."""


def _need_all_cores(rank_processes: Sequence[RankProcess]) -> bool:
    return sum(1 + len(one.workers) for one in rank_processes) >= (os.cpu_count() or 1)


def check(seconds: float | None) -> None:
    """Check the value of --seconds.

    Raises:
        DoctorError: it is too short or too long.
    """
    if seconds is not None and not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise DoctorError(
            f"--seconds must be at least {LEAST_SECONDS:.0f}, to distinguish slow from stuck, "
            f"and at most {MOST_SECONDS:.0f}"
        )


def rate_at(threads: int) -> int:
    """Return samples per second of each process, for this many sampled threads on this host."""
    seconds = AFFORDABLE * (os.cpu_count() or 1)
    return min(RATE, max(LEAST_RATE, int(seconds / (THREAD_SECONDS * threads))))


def _crowd(rank_process: RankProcess) -> int:
    with suppress(psutil.Error):
        most = max(one.num_threads() for one in (rank_process.process, *rank_process.workers))
        return most if most > MOST_THREADS else 0
    return 0
