"""The flame graph of a live run: the ranks' stacks merged, each box as wide as its time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ddoctor.analysis import endings
from ddoctor.analysis.live_ranks import phase
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import Frame

# A box narrower than this is only a line.
THINNEST = 0.01


@dataclass(frozen=True, kw_only=True)
class Box:
    """A line of the user's code, or the activity there."""

    name: str
    text: str = ""
    """The line itself."""
    phase: str = ""
    """The phase of the activity; empty: a line that called another one."""
    share: float = 0.0
    """Share of the time of all ranks, 0 to 1."""
    ranks: str = ""
    """The ranks that were sampled there."""
    inside: tuple[Box, ...] = ()
    """The widest first."""

    def width(self, within: float) -> float:
        """Return the width in per cent of the enclosing box."""
        return 100 * self.share / within


@dataclass
class _Node:
    share: float = 0.0
    ranks: set[int] = field(default_factory=set)
    inside: dict[Frame | str, _Node] = field(default_factory=dict)


def flame(evidence: Evidence) -> tuple[Box, ...]:
    """Return the outermost boxes; empty: no samples."""
    every = [one for one in LiveState.derive(evidence.all(LiveLook)).ranks if one.seen.samples]
    root = _Node()
    for one in every:
        for met in one.seen.activities:
            share = met.samples / one.seen.samples / len(every)
            node = root
            way: list[Frame | str] = [*met.calls, met.name]
            for step in way:
                node = node.inside.setdefault(step, _Node())
                node.share += share
                node.ranks.add(one.rank)
    return tuple(_boxes(root, len(every)))


def _boxes(node: _Node, count: int) -> Iterator[Box]:
    for what, one in sorted(node.inside.items(), key=lambda item: -item[1].share):
        if one.share < THINNEST:
            continue
        named = (
            {"name": endings.place(what), "text": what.text}
            if isinstance(what, Frame)
            else {"name": what, "phase": phase(what)}
        )
        yield Box(
            **named,
            share=one.share,
            ranks="all ranks" if len(one.ranks) == count else endings.ranks(one.ranks),
            inside=tuple(_boxes(one, count)),
        )
