"""Whether the ranks of a recorded run get enough CPU time, and which masks keep it from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ddoctor.analysis.work_imbalance import on_cpu
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.probes import on_one_host
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankHost, RankUse

FOLLOWS = (
    "dataloader-bottleneck",
    "straggler-rank",
    # gloo moves data with threads of its own.
    "communication-bound-step",
    "scaling-efficiency-low",
    "compute-bound",
)
"""Causes that follow from too little CPU time."""

# Ranks that share their CPUs with other processes lag alternately, and so do gloo's threads, which
# is no fault of the job. The limits: the share of the time in which a rank waits in the run queue,
# and the number of CPUs that other processes use.
QUEUED, TAKEN = 0.05, 0.5
# Two virtual CPUs may be one core, or shared with other machines. Measured on two of those, healthy
# ranks alternately used a CPU for 15 to 27 % longer than their peers, for seconds.
SLOWER = 1.1
# Between CPUs of one host there is no network. To wake gloo's threads takes 0.3 to 1 ms, measured
# with gradients of 16 KiB on two quiet CPUs.
WAKING_SECONDS = 0.002
# A slowdown counts from a tenth of the time on. Measured with torch 2.13, two ranks on one CPU
# waited for it for half of the time, and for 3 % with one CPU each.
HELD_UP = 0.1
# Half of the CPUs of its peers is no rounding error of a launcher that divides the CPUs.
CONFINED = 0.5


def have_their_cpus(steps: Steps, use: RankUse | None) -> bool:
    """Whether the ranks work on GPUs, or no other process was seen on their CPUs."""
    if all(rank.place.device != "cpu" for rank in steps.ranks):
        return True
    return (
        use is not None
        and _are_alike(steps)
        and all(
            host.waited is not None
            and host.waited < QUEUED
            and (host.neighbours is None or host.neighbours < TAKEN)
            for host in use.hosts
        )
    )


def only_waking(steps: Steps, lost: Sequence[float]) -> bool:
    """Whether the seconds that steps lose are as few as the waking of threads on one host."""
    places = [rank.place for rank in steps.ranks]
    on_cpus = all(place.device == "cpu" for place in places)
    return on_cpus and on_one_host(places) and median(lost) < WAKING_SECONDS


def _are_alike(steps: Steps) -> bool:
    """Whether the ranks use about the same CPU time, or their CPU time is not known."""
    each = [median(row) for row in on_cpu(steps) if row]
    return not each or max(each) < SLOWER * min(each)


def median_wait(ranks: Sequence[RankHost]) -> float | None:
    """The share of the time, 0 to 1, that their main threads wait for a CPU; None: not known."""
    seen = [rank.waited for rank in ranks if rank.waited is not None]
    return median(seen) if seen else None


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
    # The mask of a rank that ended at once is not known.
    ranks = [rank for rank in ranks if rank.affinity]
    tight = _tight(ranks)
    groups: dict[bool, list[RankHost]] = {True: [], False: []}
    for rank in ranks:
        own = set(rank.affinity)
        shares = any(own <= mask and len(mask) < rank.host_cpus for mask in tight)
        groups[shares].append(rank)
    # Few can have so much fewer than the others.
    few = CONFINED * max((len(rank.affinity) for rank in ranks), default=0)
    confined = [one for one in groups[False] if len(one.affinity) <= few]
    confined = [one for one in confined if _is_confined(one, ranks)]
    for held in (tuple(groups[True]), tuple(confined)):
        waited = median_wait(held)
        if held and (waited is None or waited >= HELD_UP):
            mask = tuple(sorted({cpu for rank in held for cpu in rank.affinity}))
            yield Held(ranks=held, mask=mask, waited=waited)


def waiting_for_workers(
    ranks: Sequence[RankHost], loading: Loading, steps: Steps
) -> Iterator[Held]:
    """Ranks of one host that wait for their DataLoaders, by the mask that the workers share."""
    busy = workers_busy(loading, steps)
    waits = {rank.place.rank: rank.share("loader") for rank in steps.ranks}
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


def workers_busy(loading: Loading, steps: Steps) -> Mapping[int, float]:
    """Return, by rank, the CPUs that its workers used in the judged steps."""
    seconds = {rank.place.rank: sum(rank.seconds) for rank in steps.ranks}
    busy: dict[int, float] = {}
    for one in loading.loaders:
        if one.num_workers and seconds.get(one.rank):
            share = one.taken * one.batch_cpu_seconds / seconds[one.rank]
            busy[one.rank] = busy.get(one.rank, 0.0) + share
    return busy


def _tight(ranks: Sequence[RankHost]) -> Sequence[frozenset[int]]:
    """The masks with fewer CPUs than ranks in them."""
    masks = Counter(frozenset(rank.affinity) for rank in ranks)
    return [
        mask
        for mask in masks
        if sum(count for inner, count in masks.items() if inner <= mask) > len(mask)
    ]


def _is_confined(rank: RankHost, ranks: Sequence[RankHost]) -> bool:
    """Whether it may use far fewer CPUs than its peers, and waits for a CPU longer."""
    peers = [one for one in ranks if one is not rank]
    waited = median_wait(peers)
    if waited is None or rank.waited is None:
        return False
    room = median(len(one.affinity) for one in peers)
    return len(rank.affinity) <= CONFINED * room and rank.waited >= waited + HELD_UP
