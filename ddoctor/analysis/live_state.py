"""All ranks of a live run together: whether it stands still, who is missing, who is last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from ddoctor.analysis import live_ranks
from ddoctor.analysis.derived import Derived
from ddoctor.analysis.live_ranks import FEWEST_SAMPLES, MOSTLY, LiveRankState, named, places, verb
from ddoctor.analysis.live_stragglers import LiveStraggler, straggler
from ddoctor.evidence.live import LiveLook


@dataclass(frozen=True, kw_only=True)
class Gone:
    """A rank that was started on a host, and is not there any more."""

    rank: int
    host: str
    finished: bool
    """It came to its own end: a launcher would have ended all the others if it had failed."""


@dataclass(frozen=True, kw_only=True)
class LiveState(Derived):
    """The ranks of a job as all hosts saw them."""

    looks: tuple[LiveLook, ...]
    """One a host."""
    ranks: tuple[LiveRankState, ...]
    """All that were seen, in order."""

    @classmethod
    def derive(cls, looks: tuple[LiveLook, ...]) -> LiveState:
        """The state that the samples of these hosts show."""
        ranks = [
            LiveRankState(host=look.host, seconds=look.seconds, seen=seen)
            for look in looks
            for seen in look.ranks
        ]
        return cls(looks=looks, ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)))

    @property
    def world(self) -> int:
        """How many ranks the job has, seen or not."""
        return self.looks[0].world

    @property
    def job(self) -> str:
        """The job's name."""
        return self.looks[0].job

    @property
    def command(self) -> tuple[str, ...]:
        """What each rank runs: the script and its arguments."""
        return self.looks[0].command

    @property
    def seconds(self) -> float:
        """For how long the first host was sampled."""
        return self.looks[0].seconds

    @property
    def whole(self) -> bool:
        """Whether all ranks of the job were seen."""
        return sum(len(look.ranks) for look in self.looks) == self.world

    @cached_property
    def gone(self) -> tuple[Gone, ...]:
        """Who is missing, in order."""
        every = (
            Gone(rank=rank, host=look.host, finished=look.supervised)
            for look in self.looks
            for rank in look.missing
        )
        return tuple(sorted(every, key=lambda gone: gone.rank))

    @cached_property
    def hung(self) -> bool:
        """Whether nothing moves: each rank was seen at one place only, or is held from outside."""
        return live_ranks.hung(self.ranks)

    @cached_property
    def moves(self) -> bool:
        """Whether the run makes progress, and enough was seen of each rank to judge how."""
        return live_ranks.moves(self.ranks)

    @cached_property
    def blocked(self) -> bool:
        """Whether the run is stuck with every rank waiting for others."""
        return self.hung and all(rank.waits for rank in self.ranks)

    @cached_property
    def straggler(self) -> LiveStraggler | None:
        """The rank that keeps the others waiting; None: there is none, or the run is stuck."""
        return straggler(self.ranks)

    @cached_property
    def together(self) -> float:
        """The share of the time, 0 to 1, that all ranks are in collectives, though none of them
        arrives last; 0: little of it, or the run is stuck, or not all ranks were seen."""
        if not self.whole or len(self.ranks) < 2 or not self.moves or self.straggler is not None:
            return 0.0
        share = min(rank.waiting for rank in self.ranks)
        return share if share >= MOSTLY else 0.0


def unjudged(live: LiveState) -> str:
    """Why nothing can be told of a run that stands still, or that was not seen; empty: it can."""
    every = live.ranks
    ended = [one for one in every if one.ended]
    if ended:
        return f"{named(ended)} ended while it was looked at: attach again to see what became of it"
    unseen = [one for one in every if one.seen.unseen and not one.held]
    if unseen:
        return f"what {named(unseen)} {_does(unseen)} was not seen: {unseen[0].seen.unseen}"
    away = live.world - len(every) - len(live.gone)
    least = min((one.waiting for one in every), default=0.0)
    if not live.hung:
        few = [one for one in every if one.seen.samples < FEWEST_SAMPLES and not one.held]
        if few:
            return _too_few(few)
        told = f"all ranks here wait for others for at least {least:.0%} of the time"
        return f"{told}, and {_away(away)}" if away > 0 and least >= MOSTLY else ""
    if any(one.held for one in every):
        return ""
    told = "the run stands still: " + " and ".join(
        f"{named(rows)} {verb(rows)} {where}" for where, rows in places(every).items()
    )
    if away > 0:
        return f"{told}, and {_away(away)}"
    if not all(one.waits for one in every):
        return told
    return (
        f"{told}, and none is elsewhere: what they brought to it differs "
        "(TORCH_DISTRIBUTED_DEBUG=DETAIL tells how), or nothing comes through the network"
    )


def _too_few(rows: Sequence[LiveRankState]) -> str:
    least = min(rows, key=lambda one: one.seen.samples)
    longer = ceil(2 * least.seconds * FEWEST_SAMPLES / max(least.seen.samples, 1))
    return (
        f"{named(rows)} {'were' if len(rows) > 1 else 'was'} met {least.seen.samples} times in "
        f"{least.seconds:.0f} s, and {FEWEST_SAMPLES} are needed to tell how a run gets on: look "
        f"for longer, --seconds {longer}"
    )


def _away(number: int) -> str:
    ranks, was = ("ranks", "were") if number > 1 else ("rank", "was")
    return (
        f"{number} {ranks} of other hosts {was} not seen: attach there with --bundle, too, and "
        "give all bundles to `ddoctor diagnose`"
    )


def _does(rows: Sequence[LiveRankState]) -> str:
    return "do" if len(rows) > 1 else "does"
