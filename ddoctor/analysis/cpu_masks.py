"""Which ranks of a recorded run are slowed down by their CPU mask, or by that of their workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ddoctor.evidence.loading import Loading
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankHost

# A slowdown counts from a tenth of the time on. Measured with torch 2.13, two ranks on one CPU
# waited for it for half of the time, and for 3 % with one CPU each.
HELD_UP = 0.1
# Half of the CPUs of its peers is no rounding error of a launcher that divides the CPUs.
CONFINED = 0.5


@dataclass(frozen=True, kw_only=True)
class Held:
    """Ranks of one host that wait for the CPUs of one mask."""

    ranks: tuple[RankHost, ...]
    mask: tuple[int, ...]
    waited: float | None
    """The share of the time, 0 to 1, in which their main threads wait for a CPU or for workers."""
    busy: float | None = None
    """CPUs that the workers used; None: the finding is about the main threads."""


def held_up(ranks: Sequence[RankHost]) -> Iterator[Held]:
    """Ranks of one host that share too few CPUs, or that have fewer CPUs than their peers."""
    crowded = tuple(rank for rank in ranks if _shares_too_few(rank, ranks))
    confined = tuple(rank for rank in ranks if rank not in crowded and _is_confined(rank, ranks))
    for held in (crowded, confined):
        waited = [rank.waited for rank in held if rank.waited is not None]
        if held and (not waited or median(waited) >= HELD_UP):
            yield Held(
                ranks=held,
                mask=tuple(sorted({cpu for rank in held for cpu in rank.affinity})),
                waited=median(waited) if waited else None,
            )


def waiting_for_workers(
    ranks: Sequence[RankHost], loading: Loading, steps: Steps
) -> Iterator[Held]:
    """Ranks of one host that wait for their DataLoaders, by the mask that the workers share."""
    busy = _busy(loading, steps)
    waits = {rank.place.rank: steps.share("loader", rank) for rank in steps.ranks}
    by_mask: dict[tuple[int, ...], tuple[RankHost, ...]] = {}
    for rank in ranks:
        if rank.rank in busy:
            mask = rank.worker_affinity or rank.affinity
            by_mask[mask] = (*by_mask.get(mask, ()), rank)
    for mask, sharers in by_mask.items():
        waited = max(waits[rank.rank] for rank in sharers)
        if waited >= HELD_UP and mask:
            used = sum(busy[rank.rank] for rank in sharers)
            yield Held(ranks=sharers, mask=mask, waited=waited, busy=used)


def _busy(loading: Loading, steps: Steps) -> Mapping[int, float]:
    """By rank, the CPUs that its workers used in the judged steps."""
    seconds = {rank.place.rank: sum(rank.seconds) for rank in steps.ranks}
    busy: dict[int, float] = {}
    for one in loading.loaders:
        if one.num_workers and seconds.get(one.rank):
            share = one.taken * one.batch_cpu_seconds / seconds[one.rank]
            busy[one.rank] = busy.get(one.rank, 0.0) + share
    return busy


def _shares_too_few(rank: RankHost, ranks: Sequence[RankHost]) -> bool:
    """Whether a mask around its own has fewer CPUs than ranks, on a host with more CPUs."""
    return any(
        set(rank.affinity) <= set(other.affinity)
        and len(other.affinity) < rank.host_cpus
        and sum(set(one.affinity) <= set(other.affinity) for one in ranks) > len(other.affinity)
        for other in ranks
    )


def _is_confined(rank: RankHost, ranks: Sequence[RankHost]) -> bool:
    """Whether it may use far fewer CPUs than its peers, and waits for a CPU longer."""
    peers = [one for one in ranks if one is not rank]
    waited = [one.waited for one in peers if one.waited is not None]
    if not waited or rank.waited is None:
        return False
    room = median(len(one.affinity) for one in peers)
    return len(rank.affinity) <= CONFINED * room and rank.waited >= median(waited) + HELD_UP
