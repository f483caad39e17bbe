"""The step needs more memory than the GPU has.

Parameters, gradients and what the optimizer keeps are there before the first sample: 16 bytes for
each parameter with AdamW in fp32 or mixed precision. Activations grow with the batch and the
length of the sequence. What cannot be made smaller has to be spread over more GPUs.

Seen from outside: ``torch.cuda.OutOfMemoryError`` in the first step, or as early as
``.to(device)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from ddoctor.evidence.plan import Plan, PlanRow
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

EXPLAINS = ("memory-headroom-low",)

GIB = 2**30
# Of AdamW's states, 8 bits in place of 32 (bitsandbytes).
SMALLER_STATES = 1 / 4


def in_a_plan(plan: Plan) -> Iterator[Finding]:
    if plan.chosen is not None:
        return
    least = min(plan.rows, key=lambda row: row.parts.total)
    parts = least.parts
    whole = parts.parameters + parts.gradients + parts.optimizer
    yield Finding(
        severity=Severity.ERROR,
        # What can be counted exactly is too much by itself.
        confidence=Confidence.CERTAIN if whole > plan.device_memory else Confidence.LIKELY,
        because=(
            f"of all strategies that were asked for, {least.title} needs least, and that is "
            f"{parts.total / GIB:.1f} GiB on each GPU; {plan.device} has "
            f"{plan.device_memory / GIB:.1f} GiB"
        ),
        evidence=tuple(
            Observation(name=name, value=round(size / GIB, 1), unit="GiB", source="closed form")
            for name, size in parts.named()
            if size
        ),
        cost=Cost(value=round((parts.total - plan.device_memory) / GIB, 1), unit="GiB"),
        fixes=tuple(_fixes(plan, least)),
    )


def _fixes(plan: Plan, least: PlanRow) -> Iterator[Fix]:
    parts = least.parts
    over = parts.total - plan.device_memory
    if parts.activations > over:
        yield Fix(
            summary="a smaller micro-batch and as many more of them for one step, or gradient "
            "checkpointing: they make nothing smaller but the activations, and that is enough",
            paste="model.gradient_checkpointing_enable()",
            language="python",
            caution="checkpointing computes each layer's forward pass twice: a third more time",
            expected_gain=f"up to {parts.activations / GIB:.1f} GiB",
        )
    gain = round(parts.optimizer * (1 - SMALLER_STATES))
    if plan.optimizer in ("adamw", "adamw-fp32") and gain > over:
        yield Fix(
            summary="optimizer states of 8 bits",
            paste='optim = "adamw_bnb_8bit"  # of TrainingArguments, with bitsandbytes',
            language="python",
            expected_gain=f"{gain / GIB:.1f} GiB",
        )
    if number := _enough(plan, least):
        yield Fix(
            summary=f"shard it over {number} GPUs with FSDP",
            paste=f"accelerate launch --use_fsdp --num_processes {number} train.py",
            caution="each layer's parameters travel in every step: fast links between the GPUs",
        )


def _enough(plan: Plan, least: PlanRow) -> int:
    """The smallest power of two of GPUs on which it fits for sure; 0: on none."""
    every = [row for row in plan.rows if row.strategy == "fsdp"]
    if not every:
        return 0
    row = max(every, key=lambda one: one.gpus)
    shared = row.gpus * (row.parts.parameters + row.parts.gradients + row.parts.optimizer)
    own = row.parts.total - shared / row.gpus
    room = plan.device_memory / plan.doubt - own
    return 1 << (ceil(shared / room) - 1).bit_length() if room > 0 else 0
