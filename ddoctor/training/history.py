"""The pace of one rank over its whole run, in memory of fixed size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, exp, log

from ddoctor.evidence.run_history import Stretch
from ddoctor.recorder.tape import CHECKPOINT, DONE, END_ROWS, EVALUATION, PHASES, Tape

MOST_STRETCHES = 256
"""When there are more, each two neighbours become one."""
FIRST_STEPS = 16
BIN = 0.02
"""Seconds of steps are counted in bins of 2 %."""
TAIL = 0.99


@dataclass
class _Steps:
    """Steps that become a stretch."""

    first: int
    begin: float
    end: float
    last: int = -1
    bins: Counter[int] = field(default_factory=Counter)
    phases: list[float] = field(default_factory=lambda: [0.0] * len(PHASES))
    resident: float = 0.0

    def add(self, other: _Steps) -> None:
        """Take up the steps that follow these."""
        self.end, self.last, self.resident = other.end, other.last, other.resident
        self.bins += other.bins
        self.phases = [a + b for a, b in zip(self.phases, other.phases, strict=True)]

    def stretch(self, began: float) -> Stretch:
        """As evidence; ``began``: the start of the script, by the same clock."""
        whole = sum(self.phases)
        return Stretch(
            first=self.first,
            last=self.last,
            begin=round(self.begin - began, 3),
            seconds=round(self.end - self.begin, 6),
            fastest=self._quantile(0.0),
            median=self._quantile(0.5),
            slowest=self._quantile(TAIL),
            phases={
                name: round(seconds / whole, 4)
                for name, seconds in zip(PHASES, self.phases, strict=True)
                if seconds
            },
            resident=round(self.resident, 1),
        )

    def _quantile(self, share: float) -> float:
        rest = max(1, ceil(share * self.bins.total()))
        for number in sorted(self.bins):
            rest -= self.bins[number]
            if rest <= 0:
                break
        return round(exp(number * BIN), 7)


class History:
    """Follows a tape from its first step to its last."""

    def __init__(self, began: float, resident: Callable[[], float]) -> None:
        self._began, self._resident = began, resident
        self._steps: list[_Steps] = []
        self._each = FIRST_STEPS
        self._read, self._end = 0, 0.0

    def read(self, tape: Tape) -> list[tuple[int, float]]:
        """Read what is new; return number and seconds of each new step, without its evaluation and
        checkpoint.

        Of more than END_ROWS steps since the last time, the first ones are lost.
        """
        done = int(tape.head[DONE])
        # While the next steps overwrite the oldest, these are not read.
        first = max(self._read, done - END_ROWS // 2)
        rows = {row.number: row for row in tape.rows(first)}
        resident = self._resident() if done > first else 0.0
        found = []
        for number in range(first, done):
            end = float(tape.ends[number % END_ROWS])
            before, self._end = self._end, end
            if number == 0 or number != self._read:
                # The time before the first step is the start's.
                self._read = number + 1
                continue
            self._read = number + 1
            seconds = max(end - before, 1e-7)
            row = rows.get(number)
            phases = row.phases if row is not None else None
            self._add(number, before, end, phases, resident)
            aside = phases[CHECKPOINT] + phases[EVALUATION] if phases else 0.0
            found.append((number, max(seconds - aside, 1e-7)))
        return found

    @property
    def last(self) -> Stretch | None:
        """The last steps; None: there are none."""
        return self._steps[-1].stretch(self._began) if self._steps else None

    def stretches(self) -> tuple[Stretch, ...]:
        """All of it so far."""
        return tuple(one.stretch(self._began) for one in self._steps)

    def _add(
        self,
        number: int,
        begin: float,
        end: float,
        phases: Sequence[float] | None,
        resident: float,
    ) -> None:
        steps = self._steps
        if not steps or steps[-1].last - steps[-1].first + 1 >= self._each:
            if len(steps) == MOST_STRETCHES:
                self._halve()
            steps.append(_Steps(number, begin, end))
        one = steps[-1]
        one.last, one.end, one.resident = number, end, resident
        one.bins[round(log(max(end - begin, 1e-7)) / BIN)] += 1
        if phases is not None:
            for place, seconds in enumerate(phases):
                one.phases[place] += seconds

    def _halve(self) -> None:
        for one, other in zip(self._steps[::2], self._steps[1::2], strict=True):
            one.add(other)
        del self._steps[1::2]
        self._each *= 2
