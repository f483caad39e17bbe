"""A large part of each step is communication that no computation overlaps.

All ranks have entered the collective, and no rank waits for another one, but the gradients are
still in transfer. The step moves too many bytes for this network, or has too little computation to
overlap them with. A network below the rate of its hardware is a separate cause
(collective-slow-for-hardware); here the network may be healthy.

Symptoms: more ranks make the step longer, though all are equally busy; a larger batch costs hardly
any extra time.

To fix it, send fewer bytes (bf16 compression, another sharding), synchronise less often (gradient
accumulation), or do more work per step.
"""

# Above 150 lines: recorded steps, objects that the script sends, a live run and printed timers, and
# one fix per kind of wrapper.

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ddoctor.analysis import (
    called_lines,
    live_data_starvation,
    printed_times,
    unused_gradients,
)
from ddoctor.analysis.cpu_contention import have_their_cpus, only_waking
from ddoctor.analysis.ddp_options import accumulate, larger_batch
from ddoctor.analysis.describe import MIB
from ddoctor.analysis.live_ranks import shares
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.stragglers import ENOUGH_STEPS, STEADY, enough, few
from ddoctor.evidence.log import Log
from ddoctor.evidence.printed_figures import PrintedTimes
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankUse
from ddoctor.evidence.wrapping import Calls, CollectiveCalls, Wrapper, Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("scaling-efficiency-low",)

# Published training keeps 90 % and more of its speed per GPU when it scales; less than 85 % is
# unusual (torchtitan and llm-foundry, benchmark tables). Exposed communication is that loss.
NOTABLE = 0.15
# A quarter leaves three quarters, where NVRx flags a slow rank; a slowdown of 1.3, which takes 23 %
# of the step, is what a public benchmark of fail-slow detection calls loud (probing's ladder).
LARGE = 0.25
# Published detectors report a slowdown from 10 %; half of it is a note.
OBJECTS_WARNING, OBJECTS_NOTE = 0.10, 0.05
# Timers of one rank show its waiting for others as well.
LARGE_WITH_WAITING = 0.4

# For so few bytes latency is the cost, not bandwidth: 64 KiB take 0.05 ms at 10 Gbit/s.
SMALL_BYTES = 64 * 2**10
# MiB of a bucket; torch has 25, and 1 for the first (torch/nn/parallel/distributed.py).
SMALLEST_CAP = 1.0


def of_objects(collective_calls: CollectiveCalls, steps: Steps) -> Iterator[Finding]:
    """A line of the script at which all ranks exchange Python objects, step by step."""
    found = _of_objects(collective_calls)
    if found is None or not steps.step:
        return
    one, seconds = found
    share = seconds / steps.step
    if share < OBJECTS_NOTE:
        return
    yield Finding(
        severity=Severity.WARNING if share >= OBJECTS_WARNING else Severity.NOTE,
        confidence=Confidence.CERTAIN,
        because=(
            f"all {len(steps.ranks)} ranks call {one.operation} at {one.place}, which pickles "
            f"Python objects: {1e3 * seconds:.3g} ms of each step on the rank that arrives last, "
            f"{share:.0%} of it"
        ),
        evidence=(
            Observation(
                name=f"{one.operation} at {one.place}",
                value=round(one.calls / collective_calls.steps, 2),
                unit="calls/step",
                source=f"{collective_calls.steps} steps",
            ),
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(
            Fix.python(
                summary="exchange objects in one step of fifty; numbers travel faster as a tensor",
                paste=f"if step % 50 == 0:\n    ...  # {one.operation} at {one.place}",
                expected_gain=f"up to {share:.0%} of the step",
            ),
        ),
    )


def _of_objects(called: CollectiveCalls) -> tuple[Calls, float] | None:
    """The most expensive such line, and its seconds per step."""
    line = called_lines.of_objects(called)
    if line is None or called.steps < ENOUGH_STEPS:
        return None
    return line, line.seconds / called.steps


def in_sight(
    steps: Steps,
    wrapping: Wrapping | None,
    use: RankUse | None,
    collective_calls: CollectiveCalls | None,
) -> Iterator[Finding]:
    if len(steps.ranks) < 2 or not enough(steps) or not steps.complete:
        return
    transfers = unused_gradients.transfers(steps)
    shares = [a / b for a, b in zip(transfers, steps.seconds, strict=True)]
    share = median(shares)
    steady = 1.0 if few(steps) else STEADY
    if share < NOTABLE or sum(one >= NOTABLE for one in shares) < steady * steps.count:
        return
    objects = _of_objects(collective_calls) if collective_calls is not None else None
    if objects is not None and share - objects[1] / median(steps.seconds) < NOTABLE:
        return  # no gradients take it
    if unused_gradients.sent_in_vain(wrapping) is not None:
        return  # `ddp-unused-parameters` says of what
    wrapper = next(iter(wrapping.wrappers), None) if wrapping is not None else None
    large = share >= LARGE and have_their_cpus(steps, use) and not only_waking(steps, transfers)
    gradients = wrapper.trainable_bytes / MIB if wrapper is not None else 0
    yield Finding(
        severity=Severity.WARNING if large else Severity.NOTE,
        confidence=Confidence.CERTAIN if large else Confidence.LIKELY,
        because=(
            f"in {1000 * median(transfers):.3g} ms of the median step of "
            f"{1000 * median(steps.seconds):.3g} ms, {share:.0%} of it, all {len(steps.ranks)} "
            "ranks are in collectives and none computes"
            + (f"; the gradients are {gradients:.3g} MiB" if gradients else "")
        ),
        evidence=(
            Observation(
                name="exposed communication",
                value=round(100 * share, 1),
                unit="% of step",
                expected=round(100 * NOTABLE),
                source="scaling tables of torchtitan and llm-foundry: 85 % and more",
            ),
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=tuple(_fixes(steps, share, wrapper, use)),
    )


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    share = live.together
    # Ranks whose loaders are late in turns wait for each other as long.
    if not share or live_data_starvation.hungry(live):
        return
    # Nothing is between them but memory, and they share their CPUs.
    together = len(live.looks) == 1 and not any(rank.seen.on_gpu for rank in live.ranks)
    yield Finding(
        severity=Severity.NOTE if together else Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"all {len(live.ranks)} ranks are in collectives for at least {share:.0%} of the time, "
            "and none of them is a straggler"
            + ("; all are on the CPUs of one host, without a network" if together else "")
        ),
        evidence=shares("in collectives", {rank: rank.waiting for rank in live.ranks}),
        cost=Cost(value=round(share, 2), unit="share of step"),
        fixes=(
            _MEASURE,
            _seldom(share),
        ),
    )


def in_printed_times(times: PrintedTimes, log: Log | None) -> Iterator[Finding]:
    """By the timers of DeepSpeed or Megatron."""
    table = printed_times.largest(times, "communication", LARGE_WITH_WAITING, printed_times.STEPS)
    # What is offloaded is copied to the host where it is reduced.
    offloaded = log is not None and log.first("optimizer-offloaded") is not None
    if table is None or table.communication is None or offloaded:
        return
    share = table.communication / table.whole
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.POSSIBLE,
        because=f"{printed_times.whence(table)}: the exchange of gradients and parameters takes "
        f"{printed_times.part(table, table.communication)}; a rank that waits for a slower one "
        "prints the same",
        evidence=(printed_times.row(table, "communication", share, LARGE_WITH_WAITING),),
        where=Where(ranks=table.ranks),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(
            _MEASURE,
            Fix(
                summary="exchange gradients less often",
                paste='"gradient_accumulation_steps": 4',
                language="text",
                caution="the batch is larger: adapt learning rate and schedule",
                expected_gain=f"up to {0.75 * share:.0%} of the step",
            ),
        ),
    )


def _fixes(
    steps: Steps, share: float, wrapper: Wrapper | None, use: RankUse | None
) -> Iterator[Fix]:
    kind, gradients = (wrapper.kind, wrapper.trainable_bytes) if wrapper is not None else ("", 0)
    if kind.startswith("fsdp"):
        yield Fix.python(
            summary="gather each parameter once: keep it after the forward pass if memory allows",
            paste="fully_shard(module, reshard_after_forward=False)"
            if kind == "fsdp2"
            else "FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)",
            caution="takes the memory of all parameters; within a node: HYBRID_SHARD, a 2-D mesh",
            expected_gain="up to a third of the communication",
        )
    if 0 < gradients <= SMALL_BYTES:
        yield larger_batch(
            "raise the batch size: for so few bytes, latency is the cost",
            f"up to {share / 2:.0%} of the time per sample",
        )
    elif wrapper is not None and kind == "ddp":
        several = len(wrapper.bucket_bytes) > 2
        small = several and (wrapper.bucket_cap_mb or SMALLEST_CAP) < SMALLEST_CAP
        if small:
            yield Fix.python(
                summary="leave DDP its own size of buckets: each of these "
                f"{len(wrapper.bucket_bytes)} is a collective, and has its latency",
                paste="model = DistributedDataParallel(model)  # without bucket_cap_mb",
                settings=("ddp.bucket_cap_mb=25",),
            )
        dtypes = {flags.parameter_dtype for flags in use.flags} if use is not None else set()
        if dtypes <= {"", "float32"} and not wrapper.comm_hook:
            yield Fix.python(
                summary="send the gradients as bfloat16, half of the bytes",
                paste=(
                    "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n\n"
                    "model.register_comm_hook(None, default_hooks.bf16_compress_hook)"
                ),
                caution=(
                    "call it on the DDP model before the first step; rounds gradients to 8 bits"
                ),
                expected_gain=f"up to {share / 2:.0%} of the step",
            )
        if gradients and not small:
            # A quarter of all gradients if they fill at most two buckets, else larger buckets.
            size = 4 * max(wrapper.bucket_bytes) if several else gradients / 4
            cap = max(1, round(size / MIB))
            yield Fix.python(
                summary=(
                    "try another bucket size: smaller buckets start earlier, larger ones are fewer"
                ),
                paste=f"model = DistributedDataParallel(model, bucket_cap_mb={cap})",
                settings=(f"ddp.bucket_cap_mb={cap}",),
            )
    if all(count == 1 for rank in steps.ranks for count in rank.synced_backwards):
        yield _seldom(share)


def _seldom(share: float) -> Fix:
    return accumulate(
        4,
        summary="accumulate gradients: communicate in every fourth step only",
        caution="the batch is four times as large: adapt learning rate and schedule",
        gain=f"up to {0.75 * share:.0%} of the step",
    )


_MEASURE = Fix(
    summary="measure the network between these hosts after the run",
    paste="torchrun … -m ddoctor.probe  # on the same hosts, launched as the training",
)
