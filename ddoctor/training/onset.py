"""Where the steps of a long run become slower for good, or as fast as before again.

The median of the last steps is compared with that of the steps before them. A change counts only
beyond what chance and the machine do to medians: six standard errors of a median, and more than the
medians of the run so far. GREYHOUND (ATC'25) asks for at least 10 slow steps, and so does this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile
from math import inf, sqrt
from statistics import median

LEAST = 1.09
"""10 % of a step is what counts (docs/decisions.md)."""
WINDOWS = ((11, 0.1, 1.3), (24, 0.5, LEAST), (72, 0.5, LEAST))
"""Numbers of last steps, the quantile of them that must have changed, and its ratio to the median
of before. A large change shows in few steps, if nearly all of them are slow. One in a noisy run
needs more."""
LONGEST = WINDOWS[-1][0]
BEFORE = 144
"""Steps whose median is the usual one."""
FEWEST_BEFORE = 40
LAST_STEPS = 5
"""As long as most of the last ones are nearer to the new pace than to the old one, it lasts."""
ERRORS = 6.0
NORMAL = 1.4826 * 1.2533
"""Standard deviation by the median absolute deviation, times the error of a median by that."""
BLOCK = 24
BLOCKS, FEWEST_BLOCKS = 50, 6
"""Medians of blocks of steps that are remembered. As long as there are fewer, only a change beyond
SURE counts."""
SURE = 1.3
MARGIN, RARE = 1.06, 25
"""A change is larger by MARGIN than the blocks before, except for one of RARE, at least one."""
LIKE_BEFORE = 1.04
"""A step that is at most so much slower than before is as before."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of pace."""

    step: int
    """The first step at the new pace."""
    before: float
    after: float
    """Seconds of a step, medians."""

    @property
    def factor(self) -> float:
        """How many times as long a step takes."""
        return self.after / self.before


class Onsets:
    """Follows the seconds of a rank's steps, one by one."""

    def __init__(self) -> None:
        self._before: deque[tuple[int, float]] = deque(maxlen=BEFORE)
        self._last: deque[tuple[int, float]] = deque(maxlen=LONGEST)
        self._block: list[float] = []
        self._blocks: deque[float] = deque(maxlen=BLOCKS)
        self._usual = self._error = self._floor = inf

    def add(self, step: int, seconds: float) -> Change | None:
        """Add a step; return the change that it settles."""
        if len(self._last) == LONGEST:
            self._before.append(self._last[0])
        self._last.append((step, seconds))
        self._block.append(seconds)
        if len(self._block) == BLOCK:
            self._learn()
        if self._usual == inf:
            return None
        for steps, share, factor in WINDOWS:
            last = sorted(one for _, one in [*self._last][-steps:])
            if len(last) == steps and last[int(share * steps)] >= self._least(steps, factor):
                return _since([*self._last], self._usual, median(last))
        return None

    def settled(self, change: Change) -> Change:
        """The same change by all steps that are known now."""
        known = [*self._before, *self._last]
        later = [seconds for number, seconds in known if number >= change.step]
        if not later:
            return change
        after = median(later[-LONGEST:])
        if change.step < known[0][0]:
            # The steps at which it began are forgotten.
            return replace(change, after=after)
        return _since(known, change.before, after)

    def lasts(self, change: Change) -> bool:
        """Whether the last steps are as slow as that."""
        last = median(seconds for _, seconds in [*self._last][-LAST_STEPS:])
        return last > (change.before + change.after) / 2

    def accept(self, since: int, factor: float) -> None:
        """Take a pace, ``factor`` times the seconds of before, for the usual one from a step on."""
        kept = [one for one in self._last if one[0] >= since]
        self._last = deque(kept, maxlen=LONGEST)
        self._block.clear()
        self._before = deque(
            ((number, one * factor) for number, one in self._before), maxlen=BEFORE
        )
        self._blocks = deque((one * factor for one in self._blocks), maxlen=BLOCKS)
        self._usual *= factor
        self._error *= factor
        self._floor *= factor

    def recovered(self, change: Change, before: float) -> int | None:
        """The step since when all are as fast as that again; None: they are not."""
        last = [one for number, one in self._last if number >= change.step][-BLOCK:]
        if len(last) < BLOCK or median(last) > LIKE_BEFORE * before:
            return None
        return _first([*self._last], change.after, before)

    def _learn(self) -> None:
        """Once a block: what is usual, and how much it varies."""
        self._blocks.append(median(self._block))
        self._block.clear()
        if len(self._before) < FEWEST_BEFORE:
            return
        self._usual = usual = median(one for _, one in self._before)
        spread = median(abs(one - usual) for _, one in self._before)
        self._error = NORMAL * spread
        # The last ones may be of the new pace, and the first ones of the warm-up.
        known = [*self._blocks][: -LONGEST // BLOCK]
        known = sorted(dropwhile(lambda one: one > median(known), known))
        high = (
            known[-1 - max(1, len(known) // RARE)] if len(known) >= FEWEST_BLOCKS else SURE * usual
        )
        self._floor = MARGIN * high

    def _least(self, steps: int, factor: float) -> float:
        """The smallest median of this number of steps that is a change."""
        return max(
            factor * self._usual, self._usual + ERRORS * self._error / sqrt(steps), self._floor
        )


def _since(steps: Sequence[tuple[int, float]], before: float, after: float) -> Change:
    begin = _first(steps, before, after)
    after = median(one for number, one in steps if number >= begin)
    return Change(step=begin, before=before, after=after)


def _first(last: Sequence[tuple[int, float]], before: float, after: float) -> int:
    """The step at which the change begins: the split with the least absolute deviations."""
    gains = [abs(one - after) - abs(one - before) for _, one in last]
    best, found, total = inf, last[-1][0], 0.0
    for (step, _), gain in zip(reversed(last), reversed(gains), strict=True):
        total += gain
        if total <= best:
            best, found = total, step
    return found
