"""Where the time of a live run goes: that of the rank for which the others wait, else of all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from ddoctor.analysis.live_ranks import (
    FOR_OTHERS,
    IN_ENGINE,
    LiveRankState,
    phase,
)
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.live_stragglers import IN_MODEL
from ddoctor.evidence.frames import Frame

# Share of the time: what takes less is not worth a change.
NOTABLE = 0.1
OF_THE_MODEL = (*IN_MODEL, IN_ENGINE)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """A share of the time of the run."""

    share: float
    """0 to 1."""
    ranks: Sequence[LiveRankState]
    """Those that spend it."""
    phase: str
    """Of a step; ``waiting``: for each other, or for the network."""
    line: Frame | None
    """The user's line where the loop leaves the way to the model; None: the model, or not known."""


def spent(live: LiveState) -> tuple[Spent, ...]:
    """What takes a notable share of the time of a run that moves, the most first."""
    if not live.moves:
        return ()
    found = live.straggler
    ranks = live.ranks if found is None else (found.rank,)
    shares: dict[tuple[str, Frame | None], dict[LiveRankState, float]] = defaultdict(dict)
    for one in ranks:
        for key, share in _parts(one):
            shares[key][one] = shares[key].get(one, 0.0) + share
    rows = [
        Spent(
            share=fmean(of.get(one, 0.0) for one in ranks),
            ranks=[one for one in ranks if of.get(one, 0.0) >= max(of.values()) / 2],
            phase=name,
            line=line,
        )
        for (name, line), of in shares.items()
    ]
    notable = (row for row in rows if row.share >= NOTABLE)
    return tuple(sorted(notable, key=lambda row: -row.share))


def _parts(one: LiveRankState) -> Iterator[tuple[tuple[str, Frame | None], float]]:
    """The shares of a rank's time by phase and line."""
    asleep = one.in_reduction_share
    yield ("waiting", None), asleep
    yield ("backward", None), -asleep
    model = [row for row in one.seen.activities if row.name in OF_THE_MODEL]
    on_the_way = {frame for row in model for frame in row.calls}
    for row in one.seen.activities:
        line = None
        if row.name not in (*OF_THE_MODEL, *FOR_OTHERS):
            line = next((frame for frame in row.calls if frame not in on_the_way), row.line)
        yield (phase(row.name), line), row.samples / one.seen.samples
