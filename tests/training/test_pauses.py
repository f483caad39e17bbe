"""A run that was stopped as a whole, as by Ctrl-Z or a paused container, is no hang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddoctor.recorder.tape import COLLECTIVE
from ddoctor.training import lead
from ddoctor.training.lead import STUCK_SECONDS, Watch
from ddoctor.training.messages import Now

TICK_SECONDS = 0.5
NOTHING_MORE = 10_000.0


class Played:
    """Two ranks that wait in a collective, and a clock that jumps over the time of a pause."""

    def __init__(self, *pauses: tuple[float, float]) -> None:
        """``pauses``: when each begins, and how long it takes."""
        self.moment, self._pauses, self._since = 0.0, list(pauses), 0.0
        self.ended_at: float | None = None
        self.launched = SimpleNamespace(world_size=2)
        self.interrupted_at = None
        self.done, self.tick, self.crowding = 5, TICK_SECONDS, 1.0
        self.store = self

    @property
    def over(self) -> bool:
        return self.ended_at is not None

    def now(self) -> Now:
        return Now(
            steps=self.done,
            phase=COLLECTIVE,
            age=self.moment - self._since,
            doing="all_reduce",
            busy=False,
            over=self.over,
            exit_code=0 if self.over else None,
            host="node-1",
            pid=1,
            stopped=False,
        )

    def states(self) -> dict[int, Now]:
        return {1: self.now()}

    def want(self, **changes: object) -> None:
        pass

    def step_times(self) -> list[float]:
        return []

    def watch(self, tick: float, glance: object = None) -> None:
        if self._pauses and self.moment >= self._pauses[0][0]:
            self.moment += self._pauses.pop(0)[1]
        self.moment += tick

    def end(self, *, sample: bool, tick: float) -> None:
        self.ended_at = self.moment


def test_ranks_that_report_rarely_are_not_silent_at_an_interruption() -> None:
    played: Any = Played()
    played.tick, played.interrupted_at = 5.0, 100.0
    watch = Watch(played, played, 10, NOTHING_MORE, lambda text: None)
    assert [*watch._find_silent(114.0)] == []
    assert [*watch._find_silent(116.0)] == [1]


@pytest.mark.parametrize("pauses", [(), ((10.0, 300.0),), ((10.0, 40.0), (20.0, 4000.0))])
def test_only_time_that_was_looked_at_counts(
    monkeypatch: pytest.MonkeyPatch, pauses: tuple[tuple[float, float], ...]
) -> None:
    played: Any = Played(*pauses)
    monkeypatch.setattr(lead, "perf_counter", lambda: played.moment)
    watch = Watch(played, played, 10, NOTHING_MORE, lambda text: None)
    watch.run()
    paused = sum(seconds for _, seconds in pauses)
    assert watch.limit == "no rank made progress"
    assert played.ended_at - paused == pytest.approx(STUCK_SECONDS, abs=2)
