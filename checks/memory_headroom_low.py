"""It fits, but so narrowly that a longer sample, or what the allocator cannot use, ends it.

The caching allocator rounds and splits what it gives, so that some of the memory is reserved and
of no use; a batch of longer samples needs more than the last; the optimizer's first step makes
its states. Close to the limit the allocator frees its cache and tries again, in every step, before
it gives up: the run gets slow, and then ends hours in.

Seen from outside: ``num_alloc_retries`` of ``torch.cuda.memory_stats()`` grows.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import cuda_oom
from ddoctor.analysis.memory_fixes import MemoryNeed, expandable, remedies
from ddoctor.evidence.environment import Environment
from ddoctor.evidence.memory_headroom import MARGIN, MemoryHeadroom
from ddoctor.evidence.plan import Plan
from ddoctor.evidence.steps import MemoryOverTime
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("cuda-oom-fragmentation", "first-failure-masked")

GIB = 2**30
# Less than that comes and goes with the length of the samples.
GREW = 1.1


def in_a_plan(plan: Plan) -> Iterator[Finding]:
    row = plan.rows[plan.chosen] if plan.chosen is not None else None
    if row is None or row.fit != "tight":
        return
    left = plan.device_memory - row.parts.total
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.POSSIBLE,
        because=(
            f"{row.title} leaves {left / GIB:.1f} of {plan.device_memory / GIB:.1f} GiB by a "
            f"forecast that the truth may exceed by {plan.doubt - 1:.0%}, and no other strategy "
            "that was asked for leaves enough"
        ),
        evidence=tuple(
            Observation(name=name, value=round(size / GIB, 1), unit="GiB", source=plan.way)
            for name, size in row.parts.named()
            if size
        ),
        cost=Cost(
            value=round((plan.doubt * row.parts.total - plan.device_memory) / GIB, 1), unit="GiB"
        ),
        fixes=(
            Fix(
                summary="let the allocator grow its segments, which leaves less of them unused",
                paste="export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            ),
            Fix(
                summary="see what it really takes, in a few steps",
                paste="torch.cuda.max_memory_reserved() / 2**30",
                language="python",
            ),
        ),
    )


def met_in_training(
    run: TrainingRun,
    wrapping: Wrapping | None,
    environment: Environment | None,
    growth: MemoryOverTime | None,
) -> Iterator[Finding]:
    found = cuda_oom.of_kind(run, "narrow", environment=environment)
    if found:
        more = _grew(found[0].rank.rank, growth)
        yield cuda_oom.finding(found, run, wrapping, environment, more=more)


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
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{now} samples at a time leave {left / GIB:.3g} of {rank.limit / GIB:.3g} GiB on rank "
            f"{rank.place.rank}, less than {MARGIN:.0%}; {headroom.largest} fit at most, and "
            f"{headroom.safe} with that to spare"
        ),
        evidence=(
            Observation(
                name=f"left on rank {rank.place.rank}",
                value=round(left / GIB, 3),
                unit="GiB",
                expected=round(MARGIN * rank.limit / GIB, 3),
                source=f"a training step, {MARGIN:.0%} of what its allocator can get",
            ),
            *(
                (Observation(name="one sample", value=round(rank.per_sample / GIB, 3), unit="GiB"),)
                if rank.per_sample is not None
                else ()
            ),
        ),
        where=Where.of([rank.place], every=headroom.ranks),
        cost=Cost(value=round(missing / GIB, 2), unit="GiB"),
        fixes=(
            *((allocator,) if allocator is not None else ()),
            *remedies(MemoryNeed(parts=None, missing=missing)),
        ),
    )


def _grew(rank: int, growth: MemoryOverTime | None) -> str:
    """How much more was allocated at the last look than at the first."""
    rows = growth.ranks if growth is not None else ()
    held = next((one.device for one in rows if one.rank == rank), ())
    if len(held) < 2 or held[-1] < GREW * held[0]:
        return ""
    return f"; it held {held[0] / 1024:.1f} GiB at first, and {held[-1] / 1024:.1f} at the end"
