"""How often ranks are looked at, and for how long that has to be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

import psutil

from ddoctor.errors import DoctorError
from ddoctor.live.rank_processes import RankProcess

# Samples a second, at which py-spy takes a few thousandths of one core for a rank of few threads.
RATE, LEAST_RATE = 10, 1
# py-spy looks at all threads of a process, and for native frames it stops the process meanwhile.
MOST_THREADS = 32
# Of a core, for each thread in each sample; measured with 64 threads of a short stack.
THREAD_SECONDS = 60e-6
# Of all cores of the host: where none is to spare, it is taken from the training.
AFFORDABLE = 0.004
USUAL_SECONDS, WATCHING_SECONDS = 10.0, 4.0
LEAST_SECONDS, MOST_SECONDS = 3.0, 600.0
# What can be told before the end: that a run stands still, and then that it is slow. Each costs
# py-spy a start, which takes it as long as to look for ten seconds.
SOON_SECONDS = (3.0, 10.0)
# As many as each of these takes, and some that are torn.
SOON_SAMPLES = (6, 26)


class SamplingRate:
    """Of the ranks of one job on this host."""

    def __init__(self, rank_processes: Sequence[RankProcess]) -> None:
        self.crowded = {one.process.pid: _crowd(one) for one in rank_processes}
        """Of each rank by its pid: how many threads it has, if too many; else 0."""
        rate = rate_at(max(sum(self.crowded.values()), 1))
        self.rates = {pid: rate if many else RATE for pid, many in self.crowded.items()}
        """Samples a second of each."""
        self._slowest = min(self.rates.values())

    def span(self, asked: float | None, *, watch: bool) -> float:
        """For how many seconds to look; unless it was said, until a slow run can be told."""
        usual = WATCHING_SECONDS if watch else USUAL_SECONDS
        return max(usual, SOON_SAMPLES[-1] / self._slowest) if asked is None else asked

    def ends(self, seconds: float) -> tuple[float, ...]:
        """After how many seconds something can be told in a look that takes so many."""
        soon = [
            max(least, samples / self._slowest)
            for least, samples in zip(SOON_SECONDS, SOON_SAMPLES, strict=True)
        ]
        return (*(one for one in soon if one + LEAST_SECONDS <= seconds), seconds)


def check(seconds: float | None) -> None:
    """For how long somebody wants to look.

    Raises:
        DoctorError: it is too short, or too long.
    """
    if seconds is not None and not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise DoctorError(
            f"--seconds: at least {LEAST_SECONDS:.0f}, to tell slow from stopped, "
            f"and at most {MOST_SECONDS:.0f}"
        )


def rate_at(threads: int) -> int:
    """Samples a second of each process, where it looks at so many threads on this host."""
    seconds = AFFORDABLE * (os.cpu_count() or 1)
    return min(RATE, max(LEAST_RATE, int(seconds / (THREAD_SECONDS * threads))))


def _crowd(rank_process: RankProcess) -> int:
    with suppress(psutil.Error):
        most = max(one.num_threads() for one in (rank_process.process, *rank_process.workers))
        return most if most > MOST_THREADS else 0
    return 0
