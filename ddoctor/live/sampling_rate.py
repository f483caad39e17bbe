"""How often ranks are sampled, and for how long."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

import psutil

from ddoctor.errors import DoctorError
from ddoctor.live.rank_processes import RankProcess

# Samples per second: py-spy then uses less than a hundredth of a core for a rank with few threads.
# In 10 s the share of a tenth is known to 4 % of the time.
RATE, LEAST_RATE = 20, 1
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
# Early results before the end: first whether a run hangs, then whether it is slow. Each costs
# a start of py-spy, which takes as much CPU time as ten seconds of sampling.
SOON_SECONDS = (3.0, 10.0)
# Samples that each of these needs, and some more, as a few are torn.
SOON_SAMPLES = (6, 26)


class SamplingRate:
    """The sampling rates of the ranks of one job on this host."""

    def __init__(self, rank_processes: Sequence[RankProcess]) -> None:
        self.crowded = {one.process.pid: _crowd(one) for one in rank_processes}
        """By PID of the rank: its number of threads if that is too many, else 0."""
        rate = rate_at(max(sum(self.crowded.values()), 1))
        self.rates = {pid: rate if many else RATE for pid, many in self.crowded.items()}
        """Samples per second, by PID."""
        self._slowest = min(self.rates.values())

    def span(self, asked: float | None, *, watch: bool) -> float:
        """Return the seconds to sample: ``asked``, or enough to recognise a slow run."""
        usual = WATCHING_SECONDS if watch else USUAL_SECONDS
        return max(usual, SOON_SAMPLES[-1] / self._slowest) if asked is None else asked

    def ends(self, seconds: float) -> tuple[float, ...]:
        """Return the seconds at which to judge the samples, the last of which is ``seconds``."""
        soon = [
            max(least, samples / self._slowest)
            for least, samples in zip(SOON_SECONDS, SOON_SAMPLES, strict=True)
        ]
        return (*(one for one in soon if one + LEAST_SECONDS <= seconds), seconds)


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
