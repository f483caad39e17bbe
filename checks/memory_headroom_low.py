"""GPU memory is nearly full: a longer sample or fragmentation can cause an out-of-memory error.

The caching allocator rounds and splits blocks, so some reserved memory is unusable. A batch of
longer samples needs more than the previous one. The first optimizer step allocates the optimizer
states. Close to the limit the allocator frees its cache and retries in every step. The run gets
slow and then fails, often after hours.

Symptoms: ``num_alloc_retries`` of ``torch.cuda.memory_stats()`` grows, and steps get slower.

To fix it, use a smaller micro-batch, or enable ``expandable_segments`` or gradient checkpointing.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import cuda_oom, snapshot_failures
from ddoctor.analysis.describe import GIB
from ddoctor.analysis.memory_fixes import MemoryNeed, contents, expandable, remedies
from ddoctor.analysis.snapshot_failures import SnapshotFailures
from ddoctor.evidence.memory_headroom import MARGIN, MemoryHeadroom
from ddoctor.evidence.plan import Plan, PlanRow
from ddoctor.evidence.software import Environment
from ddoctor.evidence.steps import MemoryOverTime
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("cuda-oom-fragmentation", "first-failure-masked")

# Share of the memory: less is not worth a change.
SLIGHT = 0.01
# Smaller changes follow the length of the samples.
GREW = 1.1


def in_a_plan(plan: Plan) -> Iterator[Finding]:
    row = plan.recommended
    if row is None or row.fit != "tight":
        return
    left = plan.device_memory - row.parts.total
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.POSSIBLE,
        because=(
            f"{row.title} leaves {left / GIB:.1f} of {plan.device_memory / GIB:.1f} GiB by a "
            f"forecast that real use may exceed by {plan.doubt - 1:.0%}, and no other requested "
            "strategy leaves enough"
        ),
        evidence=contents(row.parts, plan.way),
        cost=Cost(
            value=round((plan.doubt * row.parts.total - plan.device_memory) / GIB, 1), unit="GiB"
        ),
        fixes=(
            *_expanding(plan, row),
            Fix.python(
                summary="measure the real peak memory in a few steps",
                paste="torch.cuda.max_memory_reserved() / 2**30",
            ),
        ),
    )


def _expanding(plan: Plan, row: PlanRow) -> Iterator[Fix]:
    if plan.expandable:
        return
    found = plan.with_expandable
    saved = row.parts.total - found.total if found is not None else None
    if saved is not None and saved < SLIGHT * row.parts.total:
        return
    yield Fix(
        summary="enable expandable segments, which reduces fragmentation",
        paste="export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        expected_gain=f"about {saved / GIB:.1f} GiB" if saved is not None else "",
    )


def in_training(
    run: TrainingRun,
    wrapping: Wrapping | None,
    environment: Environment | None,
    growth: MemoryOverTime | None,
) -> Iterator[Finding]:
    found = cuda_oom.of_kind(run, "narrow", environment=environment)
    if found:
        rows = growth.ranks if growth is not None else ()
        held = next((one.device for one in rows if one.rank == found[0].rank.rank), ())
        more = ""
        if held and held[-1] >= GREW * held[0]:
            more = (
                f"; it held {held[0] / 1024:.1f} GiB at first, and {held[-1] / 1024:.1f} at the end"
            )
        yield cuda_oom.needs_too_much(found, run, wrapping, environment, more=more)


def in_a_snapshot(failures: SnapshotFailures) -> Iterator[Finding]:
    if found := failures.of_kind("narrow"):
        more = f", after {found[0].memory.steps} or more steps that fit"
        yield snapshot_failures.needs_too_much(found, more)


def in_a_sweep(headroom: MemoryHeadroom, environment: Environment | None) -> Iterator[Finding]:
    now = headroom.current
    if now is None or not headroom.safe < now <= headroom.largest:
        return
    lefts = [(left, one) for one in headroom.ranks if (left := one.left(now)) is not None]
    left, rank = min(lefts, key=lambda pair: pair[0] / pair[1].limit)
    used = rank.use(now)
    unused = used.unused if used is not None and not headroom.played else 0
    missing = max(0, round(MARGIN * rank.limit) - left)
    allocator = expandable(environment, unused) if unused else None
    sample = Observation(
        name="memory of one sample", value=round((rank.per_sample or 0) / GIB, 3), unit="GiB"
    )
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"micro-batches of {now} leave {left / GIB:.3g} of {rank.limit / GIB:.3g} GiB on rank "
            f"{rank.place.rank}, less than {MARGIN:.0%}; at most {headroom.largest} fit, and "
            f"{headroom.safe} with that margin"
        ),
        evidence=(
            Observation(
                name=f"free memory on rank {rank.place.rank}",
                value=round(left / GIB, 3),
                unit="GiB",
                expected=round(MARGIN * rank.limit / GIB, 3),
                source=f"a training step, {MARGIN:.0%} of the memory available to its allocator",
            ),
            *([sample] if rank.per_sample is not None else []),
        ),
        where=Where.of([rank.place], every=headroom.ranks),
        cost=Cost(value=round(missing / GIB, 2), unit="GiB"),
        fixes=(
            *((allocator,) if allocator is not None else ()),
            *remedies(MemoryNeed(parts=None, missing=missing)),
        ),
    )
