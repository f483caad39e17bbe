"""The step needs more memory than the GPU has.

Parameters, gradients and what the optimizer keeps are there before the first sample: 16 bytes for
each parameter with AdamW in fp32 or mixed precision. Activations grow with the batch and the length
of the sequence. What cannot be made smaller has to be spread over more GPUs.

Seen from outside: ``torch.cuda.OutOfMemoryError`` in the first step, or as early as
``.to(device)``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import cuda_oom
from ddoctor.analysis.memory_fixes import MemoryNeed, enough_gpus, remedies
from ddoctor.evidence.environment import Environment
from ddoctor.evidence.memory_headroom import MemoryHeadroom
from ddoctor.evidence.plan import Plan, PlanRow
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("first-failure-masked", "memory-headroom-low")

GIB = 2**30
# What a plan adds where nothing fits that was asked for: it is slow.
OFFLOADED = "fsdp-offload"


def in_a_plan(plan: Plan) -> Iterator[Finding]:
    offloaded = plan.chosen is not None and plan.rows[plan.chosen].strategy == OFFLOADED
    if plan.chosen is not None and not offloaded:
        return
    asked = [row for row in plan.rows if row.strategy != OFFLOADED]
    least = min(asked, key=lambda row: row.parts.total)
    kept = min((row.parts.total for row in plan.rows if row.strategy == OFFLOADED), default=0)
    still = f"; with its shares on the CPU it is still {kept / GIB:.1f}"
    parts = least.parts
    whole = parts.parameters + parts.gradients + parts.optimizer
    yield Finding(
        severity=Severity.WARNING if offloaded else Severity.ERROR,
        # What can be counted exactly is too much by itself.
        confidence=Confidence.CERTAIN if whole > plan.device_memory else Confidence.LIKELY,
        because=(
            f"of all strategies that were asked for, {least.title} needs least, and that is "
            f"{parts.total / GIB:.1f} GiB on each GPU; {plan.device} has "
            f"{plan.device_memory / GIB:.1f} GiB" + (still if kept > plan.device_memory else "")
        ),
        evidence=tuple(
            Observation(name=name, value=round(size / GIB, 1), unit="GiB", source=plan.way)
            for name, size in parts.named()
            if size
        ),
        cost=Cost(value=round((parts.total - plan.device_memory) / GIB, 1), unit="GiB"),
        fixes=tuple(_fixes(plan, least)),
    )


def met_in_training(
    run: TrainingRun, wrapping: Wrapping | None, environment: Environment | None
) -> Iterator[Finding]:
    found = cuda_oom.of_kind(run, "too-much", environment=environment)
    if found:
        # A log does not tell how many steps had gone well.
        confidence = Confidence.LIKELY if run.log else Confidence.CERTAIN
        yield cuda_oom.finding(found, run, wrapping, environment, confidence=confidence)


def in_a_sweep(headroom: MemoryHeadroom) -> Iterator[Finding]:
    wanted = headroom.current or 1
    if headroom.largest >= wanted or headroom.too_large is None:
        return
    rank = headroom.tightest
    limit = f"{rank.limit / GIB:.3g} GiB of rank {rank.place.rank}"
    if headroom.largest:
        because = (
            f"{wanted} samples at a time need more than the {limit}; {headroom.largest} fit at "
            f"most, and {headroom.safe} with some to spare"
        )
    else:
        because = (
            f"not one sample of {headroom.workload} can be trained in the {limit}: its parameters "
            f"alone take {rank.parameters / GIB:.3g}, with gradients and the optimizer's states "
            "several times that"
        )
    ranks = len(headroom.ranks)
    need = MemoryNeed(
        parts=None,
        missing=0,
        sharded=ranks if headroom.sharded else 1,
        shards=0 if headroom.sharded or ranks == 1 else ranks,
    )
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=because,
        evidence=(
            Observation(
                name="parameters and buffers", value=round(rank.parameters / GIB, 2), unit="GiB"
            ),
        ),
        where=Where.of([rank.place], every=headroom.ranks),
        fixes=tuple(remedies(need)),
    )


def _fixes(plan: Plan, least: PlanRow) -> Iterator[Fix]:
    sharded = least.gpus if least.strategy.startswith("fsdp") else 1
    yield from remedies(
        MemoryNeed(
            parts=least.parts,
            missing=least.parts.total - plan.device_memory,
            optimizer="AdamW" if plan.optimizer in ("adamw", "adamw-fp32") else "",
            sharded=sharded,
            shards=_enough(plan),
            checkpointed=plan.checkpointing == "every",
            gains=plan.gains,
        )
    )


def _enough(plan: Plan) -> int:
    """The smallest power of two of GPUs on which it fits for sure; 0: on none."""
    every = [row for row in plan.rows if row.strategy == "fsdp"]
    if not every:
        return 0
    row = max(every, key=lambda one: one.gpus)
    each = row.parts.parameters + row.parts.gradients + row.parts.optimizer
    room = round(plan.device_memory / plan.doubt)
    return enough_gpus(row.gpus * each, row.parts.total - each, room)
