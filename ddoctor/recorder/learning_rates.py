"""Whether the optimizers have a learning rate, or have reached its end."""

from __future__ import annotations

from typing import Any

from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.stepping import Stepping
from ddoctor.recorder.timeline import Timeline

EVERY, SELDOM, LATER = 8, 8, 256
"""Steps between two looks: at first, as a part of those until then, and at most."""


class LearningRates:
    """Asks the groups of all optimizers, now and then."""

    def __init__(self, timeline: Timeline, stepping: Stepping) -> None:
        self._timeline, self._stepping = timeline, stepping
        self._since: int | None = None

    @property
    def zero_steps(self) -> int:
        """Number of last steps in which every learning rate was zero."""
        return self._timeline.done - self._since if self._since is not None else 0

    def look(self, number: int) -> int:
        """Between two steps. Returns the step of the next call."""
        if not self._all_zero():
            self._since = None
        elif self._since is None:
            self._since = number
        return number + min(max(EVERY, number // SELDOM), LATER)

    @harmless
    def _all_zero(self) -> bool:
        groups = [group for one in self._stepping.optimizers for group in one.param_groups]
        return bool(groups) and all(_is_zero(group.get("lr")) for group in groups)


def _is_zero(rate: Any) -> bool:
    """None means that the optimizer finds its own; a tensor may be on a GPU, which is not asked."""
    return isinstance(rate, int | float) and rate == 0
