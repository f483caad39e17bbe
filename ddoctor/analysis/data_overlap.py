"""Which ranks were given the same data, and whether that can be meant."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ddoctor.analysis import endings
from ddoctor.evidence.loading import DataSeen, Loader, Loading
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Where

# One batch alone may be the same by accident: the longest samples first, a fixed one to warm up.
LEAST = 2


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The first batches of one loader, over all ranks."""

    ranks: tuple[int, ...]
    """That were compared."""
    groups: tuple[tuple[int, ...], ...]
    """Those with the same batches, two ranks or more."""
    batches: int
    """Of each rank that were compared."""

    @property
    def everyone(self) -> bool:
        """Whether all of them have the same."""
        return self.groups == (self.ranks,)

    @property
    def who(self) -> str:
        """The ranks with the same batches, to follow the word "to" in a sentence."""
        return (
            "all ranks"
            if self.everyone
            else ", as well as to ".join(map(endings.ranks, self.groups))
        )

    def where(self, loaders: Iterable[Loader]) -> Where:
        """The ranks of all groups; nothing where that is all of them."""
        return place({rank for group in self.groups for rank in group}, loaders)


def compare(
    seen: DataSeen, name: str, by: Literal["indices", "values", "labels"]
) -> Compared | None:
    """None: of fewer than two ranks enough is known, or all batches of a rank are the same."""
    of_rank: dict[int, dict[int, tuple[str, ...]]] = defaultdict(dict)
    for one in seen.epochs:
        if one.name == name and one.by == by and len(one.batches) >= LEAST:
            of_rank[one.rank][one.epoch] = one.batches
    if len(of_rank) < 2:
        return None
    epochs = sorted(set.intersection(*(set(epochs) for epochs in of_rank.values())))
    lengths = {epoch: min(len(epochs[epoch]) for epochs in of_rank.values()) for epoch in epochs}
    if not epochs:
        return None
    given = {
        rank: tuple(batch for epoch in epochs for batch in batches[epoch][: lengths[epoch]])
        for rank, batches in of_rank.items()
    }
    if any(len(set(batches)) == 1 for batches in given.values()):
        return None
    return Compared(ranks=tuple(sorted(given)), groups=alike(given), batches=sum(lengths.values()))


def alike(given: Mapping[int, Sequence[str]]) -> tuple[tuple[int, ...], ...]:
    """Those with equal sequences, two or more."""
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, batches in sorted(given.items()):
        groups[tuple(batches)].append(number)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def synchronised(wrapping: Wrapping | None, steps: Steps | None) -> bool | None:
    """Whether the ranks make one model of their gradients; None: not seen."""
    if wrapping is not None and any(one.kind != "none" for one in wrapping.wrappers):
        return True
    if steps is not None and any(sum(rank.synced_backwards) for rank in steps.ranks):
        return True
    return None if wrapping is None else False


def confidence(
    compared: Compared, loaders: Iterable[Loader], synced: bool | None
) -> Confidence | None:
    """How sure it is that this is not meant; None: it may well be.

    Ranks of one tensor-parallel, pipeline or sequence group are given the same data: neighbours on
    a host, in groups of one size that cover all ranks, or the whole of a run without data parallel
    wrapper.
    """
    if synced is False:
        return None
    if compared.everyone:
        return Confidence.CERTAIN if synced else Confidence.LIKELY
    host = {one.rank: one.host for one in loaders}
    sizes = {len(group) for group in compared.groups}
    covered = sum(map(len, compared.groups)) == len(compared.ranks)
    together = all(len({host.get(rank) for rank in group}) == 1 for group in compared.groups)
    return None if covered and len(sizes) == 1 and together else Confidence.LIKELY


def place(ranks: Collection[int], loaders: Iterable[Loader]) -> Where:
    """These ranks and their hosts; nothing where all that have the loader are meant."""
    hosts = {one.rank: one.host for one in loaders}
    if set(ranks) == set(hosts):
        return Where()
    return Where(
        hosts=tuple(sorted({hosts[rank] for rank in ranks if rank in hosts})),
        ranks=tuple(sorted(ranks)),
    )


def by_name(loading: Loading) -> Mapping[str, Sequence[Loader]]:
    """The loaders of all ranks that training took batches from, by the place that makes them."""
    found: dict[str, list[Loader]] = defaultdict(list)
    for one in loading.loaders:
        if one.taken:
            found[one.name].append(one)
    return found
