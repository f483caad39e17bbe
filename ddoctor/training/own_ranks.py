"""Ranks that a script starts itself, say by ``mp.spawn`` or Lightning: they are looked at from
outside.

The recorder is in the process that ddoctor starts: the first of these ranks, or none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING

from ddoctor import console
from ddoctor.errors import DoctorError

if TYPE_CHECKING:
    from ddoctor.evidence.section import Evidence
    from ddoctor.live.rank_processes import RankProcess

AGAIN_SECONDS, MOST_SECONDS = 5.0, 60.0
"""Between two searches of the host's processes: at first, and at most."""
TRAINED_SECONDS = 20.0
"""So long after their connections were seen, the first steps and imports are over."""


class OwnRanks:
    """The ranks below one process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._next, self._since = 0.0, 0.0
        self._began = perf_counter()

    @property
    def seen(self) -> bool:
        """Whether there were any when they were last searched for."""
        return self._since > 0

    def found(self) -> Sequence[RankProcess]:
        """Those that there are now, connected with each other."""
        if len(rows := self._rows()) < 2:
            self._since = 0.0
            return ()
        if not self._since:
            self._since = perf_counter()
            console.say(
                f"ddoctor: the script starts {len(rows)} ranks itself, so ddoctor looks at them "
                "from outside; under torchrun it records their steps"
            )
        return rows

    def look(self) -> Evidence | None:
        """Sample them as ``ddoctor attach`` does, once they have trained for a while.

        None: it was not yet time, there are none, or they cannot be sampled.
        """
        moment = perf_counter()
        if moment < self._next:
            return None
        apart = AGAIN_SECONDS if self.seen else min(moment - self._began, MOST_SECONDS)
        self._next = moment + max(AGAIN_SECONDS, apart)
        rows = self.found()
        if not rows or moment - self._since < TRAINED_SECONDS:
            return None
        with suppress(DoctorError):
            return _sampled(rows)
        return None

    def _rows(self) -> Sequence[RankProcess]:
        from ddoctor.live import rank_processes

        with suppress(DoctorError):
            return [one for one in rank_processes.named([self._pid]).ranks if one.first]
        return ()


def _sampled(rows: Sequence[RankProcess]) -> Evidence:
    from ddoctor.live import attach
    from ddoctor.live.sampling_rate import SamplingRate

    *_, last = attach.observe(rows, SamplingRate(rows), attach.SamplingOptions())
    return last
