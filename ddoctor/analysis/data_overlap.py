"""Which ranks receive the same data, and whether that may be intended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ddoctor.analysis import endings, exchanged_models
from ddoctor.evidence.loading import DataSeen, Loader, Loading
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.wrapping import CollectiveCalls, Wrapping
from ddoctor.models import Confidence, Placed, Where

# A single batch may be equal by accident: the longest samples first, or a fixed warm-up batch.
LEAST = 2
# As many calls of the model as the recorder compares.
FIRST_STEPS = 8


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The first batches of one loader, over all ranks."""

    ranks: tuple[int, ...]
    """The compared ranks."""
    groups: tuple[tuple[int, ...], ...]
    """Groups of two or more ranks with the same batches."""
    batches: int
    """Compared batches of each rank."""

    @property
    def everyone(self) -> bool:
        """Whether all ranks have the same batches."""
        return self.groups == (self.ranks,)

    @property
    def who(self) -> str:
        """The ranks with the same batches, to follow the word "to" in a sentence."""
        if self.everyone:
            return "all ranks"
        return ", as well as to ".join(map(endings.ranks, self.groups))

    def where(self, places: Iterable[Placed]) -> Where:
        """The ranks of all groups; empty if these are all ranks."""
        return place({rank for group in self.groups for rank in group}, places)


def compare(
    seen: DataSeen, name: str, by: Literal["indices", "values", "labels"]
) -> Compared | None:
    """Compare the first batches of one loader on all ranks.

    None: fewer than two ranks are known well enough, or all batches of a rank are equal.
    """
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
    return _compared(
        {
            rank: tuple(batch for epoch in epochs for batch in batches[epoch][: lengths[epoch]])
            for rank, batches in of_rank.items()
        }
    )


def compare_inputs(seen: DataSeen) -> Compared | None:
    """Compare what the model got first on all ranks; None as for ``compare``."""
    known = [one for one in seen.inputs if len(one.batches) >= LEAST]
    shortest = min((len(one.batches) for one in known), default=0)
    if len(known) < 2:
        return None
    return _compared({one.rank: one.batches[:shortest] for one in known})


def _compared(given: Mapping[int, tuple[str, ...]]) -> Compared | None:
    """None: all batches of a rank are equal."""
    if any(len(set(batches)) == 1 for batches in given.values()):
        return None
    batches = len(next(iter(given.values())))
    return Compared(ranks=tuple(sorted(given)), groups=alike(given), batches=batches)


def alike(given: Mapping[int, Sequence[str]]) -> tuple[tuple[int, ...], ...]:
    """Groups of two or more ranks with equal sequences."""
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, batches in sorted(given.items()):
        groups[tuple(batches)].append(number)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def synchronised(
    wrapping: Wrapping | None, steps: Steps | None, calls: CollectiveCalls | None = None
) -> bool | None:
    """Whether the ranks average their gradients into one model; None: not known.

    The first batches are compared. Where each rank trains a model alone before the common one, such
    as a teacher, these belong to that.
    """
    if steps is not None and _alone_at_first(steps):
        return False
    if wrapping is not None and any(one.kind != "none" for one in wrapping.wrappers):
        return True
    if steps is not None and steps.synced:
        return True
    if wrapping is not None and exchanged_models.averaged(wrapping, calls):
        return True
    return None if wrapping is None else False


def _alone_at_first(steps: Steps) -> bool:
    return steps.synced is True and not any(
        any(rank.synced_backwards[:FIRST_STEPS]) for rank in steps.ranks
    )


def confidence(
    compared: Compared, places: Iterable[Placed], synced: bool | None
) -> Confidence | None:
    """How sure it is that equal data is a mistake; None: it may be intended.

    Ranks of one tensor-parallel, pipeline or sequence group need the same data. They are neighbours
    on a host, in groups of one size that cover all ranks, or all ranks of a run without a data
    parallel wrapper.
    """
    if synced is False:
        return None
    if compared.everyone:
        return Confidence.CERTAIN if synced else Confidence.LIKELY
    host = {one.rank: one.host for one in places}
    sizes = {len(group) for group in compared.groups}
    covered = sum(map(len, compared.groups)) == len(compared.ranks)
    together = all(len({host.get(rank) for rank in group}) == 1 for group in compared.groups)
    return None if covered and len(sizes) == 1 and together else Confidence.LIKELY


def place(ranks: Collection[int], places: Iterable[Placed]) -> Where:
    """These ranks and their hosts, where known; empty if these are all of these places."""
    hosts = {one.rank: one.host for one in places}
    if hosts.keys() <= set(ranks):
        return Where()
    known = {hosts[rank] for rank in ranks if rank in hosts}
    return Where(hosts=tuple(sorted(known - {""})), ranks=tuple(sorted(ranks)))


def even(loading: Loading) -> bool:
    """Whether all ranks are known to have the same number of batches, of each loader."""
    lengths = [
        {one.epoch_batches or one.batches for one in loaders}
        for loaders in by_name(loading).values()
    ]
    return bool(lengths) and all(len(each) == 1 and None not in each for each in lengths)


def by_name(loading: Loading) -> Mapping[str, Sequence[Loader]]:
    """The loaders that the training took batches from, by the line that creates them."""
    found: dict[str, list[Loader]] = defaultdict(list)
    for one in loading.loaders:
        if one.taken:
            found[one.name].append(one)
    return found
