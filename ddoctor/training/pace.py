"""Tells where the steps of a run become slower for good: since when, on which ranks, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddoctor.evidence.run_history import RunEvent
from ddoctor.evidence.section import Evidence
from ddoctor.training import change, merge
from ddoctor.training.change import TRANSFER
from ddoctor.training.events import Events, explained
from ddoctor.training.gathering import Gathering
from ddoctor.training.messages import Record
from ddoctor.training.onset import LEAST, Change, Onsets

BEFORE_STEPS = 400
"""Steps before a change whose rows are compared: of short ones, an eighth is recorded."""
LONGER = 0.5
"""Batches that have grown by this share of a change explain it: lengths vary."""
CROWDED = 0.3
"""Share of a change that is waiting for a CPU: others use it, and they may leave soon."""
EXPLAINED = 0.5
"""Nor is it clear what a change is of which the phases of the slowest rank show a smaller share."""
BRIEF_SECONDS = 20.0
"""Such a change is reported only after this time."""
LARGE = 1.3
LASTS_SECONDS, LARGE_LASTS_SECONDS = 1.5, 0.75
"""A change, or a large one, is examined after this time. Shared machines are slower for a second
now and then."""
WOBBLE_SECONDS = 5.0
"""A change of the transfer alone that is not large is reported only after this time: networks
wobble as much."""
CAUSE_SECONDS, CAUSE_STEPS = 10.0, 40
"""After a change, its cause is looked for when this time and these steps are over."""
AGAIN_SECONDS = 1.0


class Pace:
    """Follows the steps of rank 0, and asks all ranks about a change."""

    def __init__(self, gathering: Gathering, command: tuple[str, ...], events: Events) -> None:
        self._gathering, self._command, self._events = gathering, command, events
        self._onsets = Onsets()
        self._change: Change | None = None
        """The change that is examined, or that has been reported and is not over."""
        self._usual = 0.0
        """Seconds of a step before all of it."""
        self._pace = 0.0
        """The same since the last change that was reported."""
        self._began = self._next = 0.0
        self._last = 0
        self._lost = 0.0
        self._told = False
        self._before: Evidence | None = None
        """How the run was before the change, until the cause has been looked for."""
        self._answered: Callable[[float, Sequence[Record]], None] | None = None

    def look(self, now: float, steps: Sequence[tuple[int, float]]) -> None:
        """Follow new steps, each a number and seconds; ``now``: seconds of any clock."""
        for step, seconds in steps:
            self._add(now, step, seconds)
        if self._answered is not None:
            answers = self._gathering.answers()
            if answers is not None:
                then, self._answered = self._answered, None
                then(now, answers)
        elif self._change is not None and not self._gathering.asking:
            self._go_on(now, self._change)

    def _add(self, now: float, step: int, seconds: float) -> None:
        self._last = step
        found = self._onsets.add(step, seconds)
        if self._change is None:
            if found is not None:
                self._begin(now, found)
                self._usual = found.before
                self._lost = (found.after - found.before) * (step - found.step + 1)
            return
        self._lost += seconds - self._usual
        since = self._onsets.recovered(self._change, self._usual)
        if since is not None:
            if self._told:
                lost = round(self._lost, 3)
                self._events.tell(
                    RunEvent(event="recovered", step=since, after=self._usual, lost_seconds=lost)
                )
                self._onsets.accept(since, self._usual / self._pace)
            self._drop()
        elif found is not None and self._told and self._before is None:
            # It has become slower still.
            self._begin(now, found)

    def _begin(self, now: float, found: Change) -> None:
        self._change, self._told = found, False
        self._began = self._next = now

    def _drop(self) -> None:
        self._change = self._before = None
        self._told = False
        if self._answered is not None:
            # The answers are still to come, and must be taken before one can ask again.
            self._answered = _ignore

    def _go_on(self, now: float, found: Change) -> None:
        if not self._told:
            lasted = (self._last - found.step + 1) * found.after
            least = LARGE_LASTS_SECONDS if found.factor >= LARGE else LASTS_SECONDS
            if now < self._next or lasted < least:
                return
            self._next = now + AGAIN_SECONDS
            self._gathering.ask(max(0, found.step - BEFORE_STEPS))
            self._answered = self._examine
        elif (
            self._before is not None
            and now - self._began >= CAUSE_SECONDS
            and self._last - found.step >= CAUSE_STEPS
        ):
            self._gathering.ask(found.step, stack=True)
            self._answered = self._explain

    def _examine(self, now: float, records: Sequence[Record]) -> None:
        """Settle whether a change is reported, and where it is."""
        found = self._change
        if found is None:
            return  # it is over
        compared = change.compared(records, self._command, found.step)
        if compared is None:
            return  # too few steps are recorded yet
        if compared.longer_batches >= 1 + LONGER * (found.factor - 1):
            self._onsets.accept(found.step, found.factor)
            self._drop()
            return
        much = found.after - found.before
        transfer, others = compared.grown.phase == TRANSFER, compared.others
        # Threads that transfer wait for CPUs, although the main thread may not.
        taken = transfer and others is not None
        crowded = compared.crowded >= CROWDED * much or taken
        clear = compared.explained >= EXPLAINED * much and not crowded
        wobbles = transfer and found.factor < LARGE
        least = WOBBLE_SECONDS if wobbles else 0.0
        if now - self._began < (least if clear else BRIEF_SECONDS):
            return
        found = self._onsets.settled(found)
        if found.factor < LEAST:
            self._drop()
            return
        if not self._onsets.lasts(found):
            return  # it seems to be over
        self._change = found
        self._told = True
        self._before = Evidence(merge.sections(compared.before))
        self._onsets.accept(found.step, found.factor)
        self._pace = found.after
        grown = compared.grown
        self._events.tell(
            RunEvent(
                event="slower",
                step=found.step,
                before=found.before,
                after=found.after,
                phase=grown.phase,
                ranks=grown.ranks,
                hosts=grown.hosts,
                others=others and round(others, 2),
            )
        )

    def _explain(self, now: float, records: Sequence[Record]) -> None:
        """Tell the cause, if there is one."""
        if self._change is None or self._before is None:
            return  # it is over
        begin = self._change.step
        after = change.run_of(records, self._command, lambda number: number >= begin)
        before, self._before = self._before, None
        if not after.judged:
            return
        found = change.cause(before, Evidence(merge.sections(after)))
        if found is not None:
            self._events.tell(explained(RunEvent(event="cause", step=begin), found))


def _ignore(now: float, records: Sequence[Record]) -> None:
    """Take answers about a change that was over before they came."""
