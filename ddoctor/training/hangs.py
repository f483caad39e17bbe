"""Whether a run that takes no step hangs, by its own pauses so far and by what its ranks do."""

from __future__ import annotations

from collections.abc import Mapping

from ddoctor.recorder.tape import COLLECTIVE
from ddoctor.training.messages import Now

QUIET_SECONDS = 30.0
"""A shorter pause between two steps is no hang."""
LONGER = 3.0
"""Nor is one that is shorter than this many times the longest so far, such as an evaluation."""
BUSY_SECONDS = 60.0
"""The same while all ranks use a CPU outside of collectives, and none begins anything new. Callers
of NCCL do so while they wait for a GPU."""
AT_WORK_SECONDS = 540.0
"""The same while some ranks do so and the others wait for them. By default the watchdog of
torch.distributed ends a run that uses NCCL after 600 s."""


class Hangs:
    """Follows the states of all ranks."""

    def __init__(self, now: float) -> None:
        """``now``: seconds of any clock, the same in all calls."""
        self._steps = 0
        self._step_at = now
        self._longest = 0.0
        self._ages: dict[int, float] = {}
        self._began: dict[int, float] = {}
        """When each rank began what it does."""
        self.hung = False

    @property
    def pause(self) -> float:
        """Moment of the last step."""
        return self._step_at

    def look(self, now: float, steps: int, states: Mapping[int, Now]) -> bool:
        """Look at the number of steps and at the states; whether the run hangs."""
        if steps > self._steps:
            if self._steps:
                self._longest = max(self._longest, now - self._step_at)
            self._steps, self._step_at = steps, now
        for rank, state in states.items():
            if state.over or state.age < self._ages.get(rank, 0.0) or rank not in self._began:
                self._began[rank] = now
            self._ages[rank] = state.age
        self.hung = self._hangs(now, {rank: one for rank, one in states.items() if not one.over})
        return self.hung

    def wait_longer(self, seconds: float) -> None:
        """Count no time in which nothing was looked at."""
        self._step_at += seconds
        for rank in self._began:
            self._began[rank] += seconds

    def _hangs(self, now: float, alive: Mapping[int, Now]) -> bool:
        # A stopped rank is its user's choice. Before the first step, only waiting for other ranks
        # tells a hang from a long preparation.
        waiting = all(one.phase == COLLECTIVE for one in alive.values())
        if not alive or any(one.stopped for one in alive.values()) or not (self._steps or waiting):
            return False
        working = [one for one in alive.values() if one.busy and one.phase != COLLECTIVE]
        if not working:
            least = QUIET_SECONDS
        elif len(working) == len(alive):
            least = BUSY_SECONDS
        else:
            least = AT_WORK_SECONDS
        still = now - max(self._began[rank] for rank in alive)
        return now - self._step_at > max(least, LONGER * self._longest) and still > QUIET_SECONDS
