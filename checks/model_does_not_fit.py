"""The training step needs more memory than the GPU has.

Parameters, gradients and optimizer states exist before the first sample: 16 bytes per parameter
with AdamW in fp32 or mixed precision. Activations grow with the batch size and the sequence length.
What cannot shrink must be sharded over more GPUs.

Symptoms: ``torch.cuda.OutOfMemoryError`` in the first step, or already in ``.to(device)``.

To fix it, shard with FSDP, use a smaller micro-batch, gradient checkpointing or an 8-bit optimizer,
or offload to host memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import cuda_oom, gpu_memory, log_events, snapshot_failures
from ddoctor.analysis.describe import GIB
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.memory_fixes import MemoryNeed, contents, enough_gpus, remedies
from ddoctor.analysis.snapshot_failures import SnapshotFailures
from ddoctor.analysis.trained_states import trained_states
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.log import Log
from ddoctor.evidence.memory_headroom import MemoryHeadroom
from ddoctor.evidence.plan import MemoryParts, Plan, PlanRow
from ddoctor.evidence.script import Script
from ddoctor.evidence.software import Environment
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

# Above 150 lines: plans, sweeps, runs, snapshots, logs and engines each show it differently.
EXPLAINS = ("first-failure-masked", "memory-headroom-low", "script-error", "dead-rank")

# By NVIDIA's and AMD's data sheets: no GPU of 2026 has more.
MOST_GIB = 288


def in_a_launch(plan: LaunchPlan, script: Script | None, gpus: Gpus | None) -> Iterator[Finding]:
    """What a training keeps of its model is more than a GPU has, before any activation."""
    granted, named = gpu_memory.of_launch(plan, gpus)
    most = granted or MOST_GIB
    room = f"a GPU has {most:,.0f} ({named})" if named else f"the largest GPU has {most:,.0f}"
    for one in trained_states(plan, script):
        parts = one.under(one.strategy) if one.strategy else MemoryParts()
        if parts.model <= most * GIB:
            continue
        whole = one.under("DDP").model
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=f"{one.model.place} has {one.model.size}: weights, gradients and AdamW's "
            f"states take {parts.model / GIB:,.0f} GiB on each GPU under {one.strategy}, "
            f"and {room}",
            evidence=contents(parts, "by the number of parameters"),
            fixes=(
                *remedies(
                    MemoryNeed(
                        parts=parts,
                        missing=parts.model - round(most * GIB),
                        optimizer="AdamW",
                        sharded=one.ranks if one.shards_all else 1,
                        shards=max(one.ranks, enough_gpus(whole, 0, round(most * GIB))),
                    )
                ),
                Fix(
                    summary="compare the strategies, activations included",
                    paste=f"ddoctor plan --params {one.model.billions:.3g}B --gpus {one.ranks} "
                    f"--device-memory {most:.0f}GiB --activations 10GB",
                ),
            ),
        )
        return


def in_a_plan(plan: Plan) -> Iterator[Finding]:
    # A plan adds these slow strategies if no requested one fits.
    offloaded = plan.recommended is not None and plan.recommended.offloads
    if plan.recommended is not None and not offloaded:
        return
    asked = [row for row in plan.rows if not row.offloads]
    least = min(asked, key=lambda row: row.parts.total)
    kept = min((row.parts.total for row in plan.rows if row.offloads), default=0)
    still = f"; with its shards in host memory it still needs {kept / GIB:.1f}"
    parts = least.parts
    need = MemoryNeed(
        parts=parts,
        missing=parts.total - plan.device_memory,
        optimizer="AdamW" if plan.optimizer in ("adamw", "adamw-fp32") else "",
        sharded=least.gpus if least.strategy.startswith(("fsdp", "zero")) else 1,
        shards=_enough(plan),
        deepspeed=plan.zero is not None,
        checkpointed=plan.checkpointing == "every",
        gains=plan.gains,
    )
    yield Finding(
        severity=Severity.WARNING if offloaded else Severity.ERROR,
        # Parameters, gradients and optimizer states are exact; activations are a forecast.
        confidence=Confidence.CERTAIN if parts.model > plan.device_memory else Confidence.LIKELY,
        because=(
            f"of all requested strategies, {least.title} needs least: "
            f"{parts.total / GIB:.1f} GiB on each GPU{_evaluating(least)}; {plan.device} has "
            f"{plan.device_memory / GIB:.1f} GiB" + (still if kept > plan.device_memory else "")
        ),
        evidence=contents(parts, plan.way),
        cost=Cost(value=round((parts.total - plan.device_memory) / GIB, 1), unit="GiB"),
        fixes=tuple(remedies(need)),
    )


def in_training(
    run: TrainingRun, wrapping: Wrapping | None, environment: Environment | None
) -> Iterator[Finding]:
    found = cuda_oom.of_kind(run, "too-much", environment=environment)
    if found:
        # A log does not show how many steps succeeded.
        confidence = Confidence.LIKELY if run.log else Confidence.CERTAIN
        yield cuda_oom.needs_too_much(found, run, wrapping, environment, confidence=confidence)


def in_a_snapshot(failures: SnapshotFailures) -> Iterator[Finding]:
    if found := failures.of_kind("too-much"):
        yield snapshot_failures.needs_too_much(found)
    elif found := failures.of_kind("freed"):
        more = "; much was freed between the failure and the snapshot"
        yield snapshot_failures.needs_too_much(found, more, confidence=Confidence.POSSIBLE)


def in_a_sweep(headroom: MemoryHeadroom) -> Iterator[Finding]:
    wanted = headroom.current or 1
    if headroom.largest >= wanted or headroom.too_large is None:
        return
    rank = headroom.tightest
    limit = f"{rank.limit / GIB:.3g} GiB of rank {rank.place.rank}"
    if headroom.largest:
        because = (
            f"micro-batches of {wanted} need more than the {limit}; at most {headroom.largest} "
            f"fit, and {headroom.safe} with a safety margin"
        )
    else:
        because = (
            f"not even one sample of {headroom.workload} fits in the {limit}: its parameters alone "
            f"take {rank.parameters / GIB:.3g}, and several times that with gradients and "
            "optimizer states"
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


def in_a_log(log: Log, run: TrainingRun | None) -> Iterator[Finding]:
    events = log.of("cuda-oom")
    told = run is not None and any(cuda_oom.read(one.message) is not None for one in run.ranks)
    if events and not told:
        values = events[0].values
        size = values.get("size") or values.get("bytes")
        yield log_events.finding(
            events,
            f"the GPU had no room{f' for {size} more' if size else ' for more'}",
            *remedies(MemoryNeed(parts=None, missing=0)),
            confidence=Confidence.POSSIBLE,
        )


def in_an_engine(log: Log) -> Iterator[Finding]:
    """An inference engine takes what its weights leave, and says at the start if that is little."""
    if events := log.of("engine-memory"):
        yield log_events.finding(
            events, "after the weights, the GPU has no room for the KV cache", *_FOR_ENGINES
        )


_FOR_ENGINES = (
    Fix(
        summary="let the engine use more of the GPU, for shorter sequences",
        paste="vllm serve MODEL --gpu-memory-utilization 0.95 --max-model-len 8192",
        caution="a trainer on the same GPU then has less memory",
    ),
    Fix(
        summary="or spread the weights over more GPUs",
        paste="vllm serve MODEL --tensor-parallel-size 2",
    ),
)


def _evaluating(row: PlanRow) -> str:
    return " during evaluation" if row.moment.startswith("evaluation") else ""


def _enough(plan: Plan) -> int:
    """The smallest power of two of GPUs on which the model surely fits; 0 if none."""
    every = (row for row in plan.rows if row.strategy in ("fsdp", "zero-3"))
    row = max(every, key=lambda one: one.gpus, default=None)
    if row is None:
        return 0
    each = row.parts.model
    room = round(plan.device_memory / plan.doubt)
    return enough_gpus(row.gpus * each, row.parts.total - each, room)
