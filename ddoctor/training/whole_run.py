"""`ddoctor run --steps all`: rank 0 follows the run to its end, and stops nothing.

It reports where the run becomes slower, where it hangs and where it continues. A failure of what
is done here is never one of the training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from msgspec.structs import replace

from ddoctor.evidence.run_history import RankHistory, RunEvent, RunHistory, Stretch
from ddoctor.models import Finding
from ddoctor.training.child import Child
from ddoctor.training.events import Events, explained
from ddoctor.training.gathering import Gathering
from ddoctor.training.hangs import Hangs
from ddoctor.training.messages import Now, Record
from ddoctor.training.pace import Pace
from ddoctor.training.reporting import Followers
from ddoctor.training.run import Run
from ddoctor.training.warm_up import MOST

LAST_STEPS = 400
"""Steps before a hang that its report judges."""

Judge = Callable[[Run], Sequence[Finding]]
"""Writes the report of a run that hangs, and returns its findings."""

Show = Callable[["Figures"], None]
"""Serves the figures of a moment."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A run at a moment."""

    steps: dict[int, int]
    """Steps of each rank so far."""
    hung: bool
    events: dict[str, int]
    """Number of events by their name."""
    stretch: Stretch | None
    """The last steps of rank 0."""


class WholeRun:
    """Looks at rank 0's steps and at the states of all ranks."""

    def __init__(
        self,
        child: Child,
        followers: Followers,
        events: Events,
        judge: Judge,
        command: tuple[str, ...],
        show: Show | None,
    ) -> None:
        """``show``: gets the figures at each tick."""
        self._child, self._events, self._judge, self._command = child, events, judge, command
        self._show = show
        self._gathering = Gathering(followers, child)
        self._pace = Pace(self._gathering, command, events)
        self._hangs = Hangs(perf_counter())
        self._states: Mapping[int, Now] = {}
        self._told = self._asked = False

    def look(self, states: Mapping[int, Now]) -> bool:
        """Look once; whether the run hangs, and that has been reported."""
        now = perf_counter()
        stood = self._hangs.pause
        hangs = self._hangs.look(now, max(one.steps for one in states.values()), states)
        if self._told and not hangs:
            self._told = False
            lost = round(now - stood, 1)
            self._events.tell(RunEvent(event="resumed", step=self._child.done, lost_seconds=lost))
        self.glance()
        if self._asked:
            answers = self._gathering.answers()
            if answers is not None:
                self._asked = False
                if hangs:
                    self._tell_hang(now - stood, answers)
        elif hangs and not self._told and not self._gathering.asking:
            self._states = dict(states)
            self._gathering.ask(max(0, self._child.done - LAST_STEPS), stack=True)
            self._asked = True
        if self._show is not None:
            self._show(self._figures(states))
        return self._told

    def glance(self) -> None:
        """Look at the last steps of rank 0 only, which takes a tenth of the time."""
        self._pace.look(perf_counter(), self._child.new_steps())

    def _figures(self, states: Mapping[int, Now]) -> Figures:
        return Figures(
            steps={rank: state.steps for rank, state in states.items()},
            hung=self._told,
            events=dict(Counter(event.event for event in self._events.all)),
            stretch=self._child.last_stretch,
        )

    def wait_longer(self, seconds: float) -> None:
        """Count no time in which nothing was looked at."""
        self._hangs.wait_longer(seconds)

    def history(self, records: Sequence[Record]) -> RunHistory:
        """What is known at the end of the run."""
        done = max(record.done for record in records)
        self._events.tell(RunEvent(event="ended", step=max(0, done - 1)))
        return RunHistory(
            ranks=tuple(
                RankHistory(rank=one.rank, host=one.host, stretches=one.stretches)
                for one in records
            ),
            events=tuple(self._events.all),
            seconds=round(max(record.ending.time for record in records), 1),
        )

    def _tell_hang(self, seconds: float, records: Sequence[Record]) -> None:
        self._told = True
        run = Run(
            # As if they had been ended: their states are those of a run that hangs.
            records=[replace(one, ended_by_us=True, leaving=False) for one in records],
            command=self._command,
            warm_up=min(MOST, self._child.done // 2),
            limit="no rank made progress",
            lost={},
            hang_states=self._states,
        )
        found = self._judge(run)
        event = RunEvent(event="hung", step=self._child.done, lost_seconds=round(seconds, 1))
        self._events.tell(explained(event, found[0]) if found else event)
