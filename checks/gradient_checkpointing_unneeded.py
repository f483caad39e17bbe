"""Gradient checkpointing recomputes activations, although memory could keep them.

With gradient checkpointing each block runs its forward pass twice: eight units of arithmetic per
step instead of six. That saves memory. If the memory is free anyway, checkpointing only costs time.
If only some is free, fewer blocks need checkpointing.

For a recorded run, this check uses an upper bound. No block keeps more activations than the peak of
a step exceeds the memory between two steps. For a live run on CPUs, the bound is what a core can
write in the time in which the run recomputes.

Symptoms: much memory is free while ``gradient_checkpointing`` is on.

To fix it, set ``gradient_checkpointing=False``.
"""

# Above 150 lines: a plan, GPUs, CPUs and a live run, each with its bound.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import inf

from ddoctor.analysis import live_cost, live_ranks
from ddoctor.analysis.describe import GIB, MIB
from ddoctor.analysis.live_ranks import LiveRankState
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.stack_activities import OPTIMIZER, RECOMPUTES
from ddoctor.evidence.host import Memory
from ddoctor.evidence.plan import Plan
from ddoctor.evidence.steps import Growth, MemoryOverTime, Steps
from ddoctor.evidence.training import RankUse, Starts
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

# Six units of arithmetic instead of eight: Korthikanti et al., arXiv 2205.05198, section 5.
SAVED = 1 / 4
# Fragmentation takes a few per cent; CUDA and the communication library take 1 to 2.5 GiB.
ROOM = 0.9
# Below this share, activations would need several times the memory in use to fill the device.
LITTLE = 1 / 3
MIB_PER_GIB = 1024
# Bytes per second that one core writes to memory at most. STREAM's fastest single core, Apple's M1,
# reaches about 60 GB/s; those of servers reach 10 to 25.
CORE_WRITES = 60e9


def in_a_plan(plan: Plan) -> Iterator[Finding]:
    row = plan.recommended
    kept = plan.without_checkpointing
    if row is None or kept is None or plan.doubt * kept.total > plan.device_memory:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{row.title} needs {kept.total / GIB:.1f} GiB without gradient checkpointing, and "
            f"{row.parts.total / GIB:.1f} with it; {plan.device} has "
            f"{plan.device_memory / GIB:.1f}"
        ),
        evidence=(
            Observation(
                name="free without checkpointing",
                value=round((plan.device_memory - kept.total) / GIB, 1),
                unit="GiB",
                source=plan.way,
            ),
        ),
        cost=Cost(value=SAVED, unit="share of step"),
        fixes=(_KEEP,),
    )


def in_training(use: RankUse, memory: MemoryOverTime, steps: Steps) -> Iterator[Finding]:
    rows = [one for one in memory.ranks if one.device_total and one.device_reserved]
    known = _calls(use, steps)
    calls = {one.rank: known.get(one.rank, 0.0) for one in rows}
    if not rows or len(rows) < len(memory.ranks) or not all(calls.values()):
        return
    tightest = max(rows, key=lambda one: _of_the_device(one, one.device_reserved))
    because = (
        f"{calls[tightest.rank]:.0f} blocks of each forward pass are recomputed, but at most "
        f"{_gib(tightest.device_reserved):.1f} of {_gib(tightest.device_total):.1f} GiB of a GPU "
        "were reserved"
    )
    fullest = max(rows, key=lambda one: _of_the_device(one, _kept(one, calls[one.rank])))
    kept = _kept(fullest, calls[fullest.rank])
    fits = _of_the_device(fullest, kept) <= ROOM
    if fits:
        because += (
            f"; with all activations kept it would be at most {_gib(kept):.1f}, since no block "
            "keeps more of them than a step adds now"
        )
    elif _of_the_device(tightest, tightest.device_reserved) < LITTLE:
        because += (
            "; a few steps without checkpointing, or `ddoctor plan --model CONFIG`, would show "
            "whether all activations fit"
        )
    else:
        return
    yield Finding(
        severity=Severity.WARNING if fits else Severity.NOTE,
        confidence=Confidence.LIKELY if fits else Confidence.POSSIBLE,
        because=because,
        evidence=tuple(
            Observation(
                name=f"reserved on rank {one.rank}",
                value=round(_gib(one.device_reserved), 1),
                unit="GiB",
                expected=round(_gib(one.device_total), 1),
                source="torch.cuda.max_memory_reserved(), against the total of the device",
            )
            for one in rows
        ),
        cost=Cost(value=SAVED, unit="share of step"),
        fixes=(_KEEP,),
    )


def on_cpus(
    use: RankUse, memory: MemoryOverTime, steps: Steps, starts: Starts
) -> Iterator[Finding]:
    """All ranks of a host share its memory, and no allocator tells the peak of a step."""
    calls = _calls(use, steps)
    resident: dict[str, float] = defaultdict(float)
    for one in memory.ranks:
        resident[one.host] += max(one.used, default=0.0)
    limits = {one.host: one.memory / MIB for one in starts.ranks if one.memory}
    if not calls or not all(calls.values()) or any(one.device_total for one in memory.ranks):
        return
    shares = {host: used / limits[host] for host, used in resident.items() if host in limits}
    fullest = max(shares, key=lambda host: shares[host], default=None)
    if fullest is None or len(shares) < len(resident) or shares[fullest] >= LITTLE:
        return
    # A process that recomputes a block has all of its activations, and more.
    most = resident[fullest] * (1 + max(calls.values()))
    fits = most < LITTLE * limits[fullest]
    yield Finding(
        severity=Severity.WARNING if fits else Severity.NOTE,
        confidence=Confidence.LIKELY if fits else Confidence.POSSIBLE,
        because=(
            f"{min(calls.values()):.0f} blocks of each forward pass are recomputed, but the ranks "
            f"of {fullest} use {_gib(resident[fullest]):.2g} of {_gib(limits[fullest]):.3g} GiB; "
            + (
                f"with all activations kept it would be at most {_gib(most):.2g}, since no block "
                "keeps more of them than its process has now"
                if fits
                else "a few steps without checkpointing would show whether all activations fit"
            )
        ),
        cost=Cost(value=SAVED, unit="share of step"),
        fixes=(_KEEP,),
    )


def in_a_live_run(live: LiveState, hosts: tuple[Memory, ...] | None) -> Iterator[Finding]:
    """On CPUs: on a GPU, the thread of autograd recomputes, which is not sampled."""
    if not live.moves or any(one.seen.on_gpu for one in live.ranks):
        return
    shares = {one: one.share(lambda row: row.makes == RECOMPUTES) for one in live.ranks}
    share = min(shares.values())
    limits = {one.host: min(one.total, one.limit or one.total) for one in hosts or ()}
    used: dict[str, float] = defaultdict(float)
    most: dict[str, float] = defaultdict(float)
    for one in live.ranks:
        used[one.host] += one.seen.resident * MIB
        most[one.host] += _written_again(one, shares[one])
    if share < live_cost.TOLD or any(used[host] >= LITTLE * limits.get(host, 0.0) for host in used):
        return
    fullest = max(used, key=lambda host: (used[host] + most[host]) / limits[host])
    kept = used[fullest] + most[fullest]
    fits = kept < LITTLE * limits[fullest]
    yield Finding(
        severity=live_cost.severity(share) if fits else Severity.NOTE,
        confidence=Confidence.LIKELY if fits else Confidence.POSSIBLE,
        because=(
            f"backward passes recompute checkpointed blocks for {share:.0%} of the time, but the "
            f"ranks of {fullest} use {used[fullest] / GIB:.2g} of {limits[fullest] / GIB:.3g} GiB; "
            + (
                f"with all activations kept it would be at most {kept / GIB:.2g}, since their "
                "cores cannot write more in that time"
                if fits
                else "a few steps without checkpointing would show whether all activations fit"
            )
        ),
        evidence=live_ranks.shares("recomputing", shares),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(_KEEP,),
    )


def _written_again(one: LiveRankState, share: float) -> float:
    """Bytes that a rank can write at most while a step recomputes; infinite: steps are not seen.

    It keeps no more activations than that. A step whose optimizer was not met makes it larger.
    """
    steps = one.seen.visits(OPTIMIZER)
    return CORE_WRITES * share * one.seen.cpu_seconds / steps if steps else inf


def _calls(use: RankUse, steps: Steps) -> Mapping[int, float]:
    """Blocks that each forward pass of a rank checkpoints; 0 if none or unknown."""
    checkpointed = {one.rank: one.checkpointed for one in use.flags}
    forwards = {one.place.rank: sum(one.forwards) for one in steps.ranks}
    return {rank: checkpointed.get(rank, 0) / (forwards[rank] or inf) for rank in forwards}


def _kept(one: Growth, calls: float) -> float:
    """Upper bound in MiB of the reserved memory without recomputation; infinite if unknown.

    While a block is recomputed, all of its activations exist in addition to the memory between
    steps. So no block keeps more than the difference between the peak and that memory.
    """
    if one.device_peak is None or one.device_reserved is None or one.device_between is None:
        return inf
    most = one.device_peak + calls * (one.device_peak - one.device_between)
    return one.device_reserved * most / one.device_peak


def _of_the_device(one: Growth, size: float | None) -> float:
    return (size or 0.0) / (one.device_total or inf)


def _gib(size: float | None) -> float:
    return (size or 0.0) / MIB_PER_GIB


_KEEP = Fix.python(
    summary="switch off gradient checkpointing",
    paste="TrainingArguments(..., gradient_checkpointing=False)\n"
    "# in a model: hidden = block(hidden), not checkpoint(block, hidden)",
    expected_gain=f"up to {SAVED:.0%} of the arithmetic of a step",
)
