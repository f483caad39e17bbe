"""All ranks of a live run together: whether it is stuck, which ranks are missing, which is last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from ddoctor.analysis import own_loader, own_saving
from ddoctor.analysis.derived import Derived
from ddoctor.analysis.live_ranks import (
    FEWEST_SAMPLES,
    MOSTLY,
    LiveRankState,
    asks_for_a_rank,
    named,
    places,
    standing,
)
from ddoctor.analysis.live_stragglers import LiveStraggler, repeated, straggler
from ddoctor.evidence.frames import Block
from ddoctor.evidence.live import LiveLook


@dataclass(frozen=True, kw_only=True)
class Gone:
    """A rank that a launcher started on a host, and that no longer runs."""

    rank: int
    host: str
    finished: bool
    """It finished: after a failure, the launcher would have ended all other ranks."""


@dataclass(frozen=True, kw_only=True)
class LiveState(Derived):
    """The ranks of a job, from the samples of all hosts."""

    looks: tuple[LiveLook, ...]
    """One a host; all have the job's name, its command and its number of ranks."""
    ranks: tuple[LiveRankState, ...]
    """All that were seen, in order."""
    ended: str = ""
    """What ended a recorded run in which all ranks waited; empty: nothing, it hung."""

    @classmethod
    def derive(cls, looks: tuple[LiveLook, ...]) -> LiveState:
        """The state that the samples of these hosts show."""
        ranks = [
            LiveRankState(
                host=look.host,
                seconds=look.seconds,
                seen=own_saving.told(own_loader.told(seen)),
                dumped=look.dumped,
            )
            for look in looks
            for seen in look.ranks
        ]
        return cls(looks=looks, ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)))

    @property
    def world(self) -> int:
        """How many ranks the job has, seen or not."""
        return self.looks[0].world

    @property
    def framework(self) -> str:
        """What runs the loop; empty: the script itself."""
        return next((one.seen.framework for one in self.ranks if one.seen.framework), "")

    @property
    def seconds(self) -> float:
        """For how long the first host was sampled."""
        return self.looks[0].seconds

    @property
    def dumped(self) -> bool:
        """Whether only dumps of the stacks are known."""
        return all(look.dumped for look in self.looks)

    @property
    def standstill(self) -> str:
        """What shows that nothing moves."""
        if self.ended:
            return self.ended
        if self.dumped:
            return "this is what dumps of their stacks show"
        return f"nothing moved for {self.seconds:.0f} s"

    @property
    def whole(self) -> bool:
        """Whether all ranks of the job were seen."""
        return sum(len(look.ranks) for look in self.looks) == self.world

    @cached_property
    def gone(self) -> tuple[Gone, ...]:
        """The missing ranks, in order."""
        every = (
            Gone(rank=rank, host=look.host, finished=look.supervised)
            for look in self.looks
            for rank in look.missing
        )
        return tuple(sorted(every, key=lambda gone: gone.rank))

    @cached_property
    def hung(self) -> bool:
        """Whether nothing moves: each rank was sampled, and is blocked at one place."""
        return bool(self.ranks) and (bool(self.ended) or all(one.hung for one in self.ranks))

    @cached_property
    def moves(self) -> bool:
        """Whether the run makes progress, and each rank has enough samples to judge it."""
        seen = all(one.seen.samples >= FEWEST_SAMPLES and not one.ended for one in self.ranks)
        return bool(self.ranks) and seen and not self.hung

    @cached_property
    def blocked(self) -> bool:
        """Whether the run is stuck with every rank waiting for others."""
        return self.hung and all(rank.waits for rank in self.ranks)

    @cached_property
    def around(self) -> Mapping[Block, Sequence[LiveRankState]]:
        """The loops and branches around the ranks, outermost first, with the ranks inside."""
        every = dict.fromkeys(block for rank in self.ranks for block in rank.within)
        return {block: [rank for rank in self.ranks if block in rank.within] for block in every}

    @property
    def parting(self) -> Mapping[Block, Sequence[LiveRankState]]:
        """Those that only some of the ranks are in."""
        return {block: rows for block, rows in self.around.items() if len(rows) < len(self.ranks)}

    @cached_property
    def unmatched(self) -> Sequence[LiveRankState]:
        """The ranks that send or receive, while all wait, and no collective of one rank is why."""
        rest = [rank for rank in self.ranks if not rank.exchanges]
        alone = any(
            asks_for_a_rank(block) and set(rows) <= set(rest)
            for block, rows in self.parting.items()
        )
        if not self.blocked or not self.whole or alone:
            return ()
        return [rank for rank in self.ranks if rank.exchanges]

    def inside(self, block: Block) -> str:
        """Who is in it, to follow a sentence with a semicolon."""
        rows = self.around[block]
        are = "are" if len(rows) > 1 else "is"
        place = f"{block.file.rpartition('/')[2]}:{block.line}"
        return f"; only {named(rows)} {are} inside `{block.text}` ({place})"

    @cached_property
    def straggler(self) -> LiveStraggler | None:
        """The rank that keeps the others waiting; None: there is none, or the run is stuck."""
        return straggler(self.ranks) if self.moves else None

    @cached_property
    def repeated(self) -> LiveStraggler | None:
        """Without a straggler: the rank that repeatedly calls what no other rank calls."""
        alone = self.moves and self.straggler is None
        return repeated(self.ranks) if alone else None

    def others(self, named_before: Sequence[LiveRankState]) -> str:
        """What the other ranks do, to follow a sentence with a semicolon; empty: there are none."""
        rest = [one for one in self.ranks if one not in named_before]
        return "".join(f"; {standing(rows)}" for rows in places(rest).values())

    @cached_property
    def together(self) -> float:
        """The share of the time, 0 to 1, that all ranks are in collectives without a straggler.

        0: below the threshold, or the run is stuck, or not all ranks were seen.
        """
        if not self.whole or len(self.ranks) < 2 or not self.moves or self.straggler is not None:
            return 0.0
        share = min(rank.waiting for rank in self.ranks)
        return share if share >= MOSTLY else 0.0


def unjudged(live: LiveState) -> str:
    """Why ddoctor cannot judge a stuck run, or one that it did not see; empty: it can."""
    every = live.ranks
    if live.dumped:
        return _dumped(live)
    ended = [one for one in every if one.ended]
    if ended:
        return f"{named(ended)} ended during the samples: attach again to see what followed"
    unseen = [one for one in every if one.seen.unseen and not one.held]
    if unseen:
        return f"the stack of {named(unseen)} was not seen: {unseen[0].seen.unseen}"
    away = live.world - len(every) - len(live.gone)
    least = min((one.waiting for one in every), default=0.0)
    if not live.hung:
        few = [one for one in every if one.seen.samples < FEWEST_SAMPLES and not one.held]
        if few:
            return _too_few(few)
        wait = f"all ranks here wait for other ranks for at least {least:.0%} of the time"
        return f"{wait}, and {_away(away)}" if away > 0 and least >= MOSTLY else ""
    if any(one.held for one in every):
        return ""
    stuck = "the run is stuck: " + " and ".join(map(standing, places(every).values()))
    if away > 0:
        return f"{stuck}, and {_away(away)}"
    if not all(one.waits for one in every):
        return stuck
    named_groups = any(one.line is not None and "group" in one.line.text for one in every)
    return (
        f"{stuck}, and no rank is elsewhere: either they passed different tensors "
        f"{'or process groups ' * named_groups}"
        "(TORCH_DISTRIBUTED_DEBUG=DETAIL shows them), or the network transfers nothing"
    )


def _dumped(live: LiveState) -> str:
    stand = " and ".join(map(standing, places(live.ranks).values()))
    return (
        f"one dump of the stacks does not show what moves: {stand}; attach to the run while it "
        "stands, or dump the stacks of all ranks"
    )


def _too_few(rows: Sequence[LiveRankState]) -> str:
    least = min(rows, key=lambda one: one.seen.samples)
    longer = ceil(2 * least.seconds * FEWEST_SAMPLES / max(least.seen.samples, 1))
    return (
        f"{named(rows)} {'have' if len(rows) > 1 else 'has'} only {least.seen.samples} samples in "
        f"{least.seconds:.0f} s, and {FEWEST_SAMPLES} are needed to judge the progress of a run: "
        f"sample for longer with --seconds {longer}"
    )


def _away(number: int) -> str:
    ranks, was = ("ranks", "were") if number > 1 else ("rank", "was")
    return (
        f"{number} {ranks} on other hosts {was} not seen: attach there with --bundle, too, and "
        "pass all bundles to `ddoctor diagnose`"
    )
