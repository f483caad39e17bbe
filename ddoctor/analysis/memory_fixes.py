"""Fixes that reduce GPU memory, the cheapest first, and how much each saves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from ddoctor.analysis.describe import GIB
from ddoctor.evidence.plan import MemoryParts, Remedy
from ddoctor.evidence.software import ALLOCATOR, EXPANDS, Environment
from ddoctor.models import Fix, Observation

# AdamW's states with 8 bits instead of 32 (bitsandbytes).
SMALLER_STATES = 1 / 4
# Share of the missing memory: less is not worth a change.
SLIGHT = 0.1


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """The memory in use on one GPU and the memory missing, in bytes."""

    parts: MemoryParts | None
    """None: the sizes are not known."""
    missing: int
    optimizer: str = ""
    """Its class name in torch; empty: not known."""
    checkpointed: bool = False
    sharded: int = 1
    """The number of GPUs that the model is sharded over; 1: not sharded."""
    shards: int = 0
    """The number of GPUs that it could be sharded over; 0: no more."""
    deepspeed: bool = False
    """Whether DeepSpeed shards, whose plan lists the offloading strategies itself."""
    gains: Mapping[Remedy, int] = field(default_factory=dict)
    """Bytes that fixes save according to a forecast, instead of an estimate from the parts."""


def contents(parts: MemoryParts, source: str) -> tuple[Observation, ...]:
    """The contents of a GPU's memory, as evidence."""
    return tuple(
        Observation(name=name, value=round(size / GIB, 1), unit="GiB", source=source)
        for name, size in parts.named()
        if size
    )


def remedies(need: MemoryNeed) -> Iterator[Fix]:
    """Fixes, the cheapest first, without those already applied or with hardly any gain."""
    for fix, gain, at_most in _known(need):
        if gain is None or not need.missing:
            yield fix
        elif gain >= SLIGHT * need.missing:
            enough = "which is enough" if gain >= need.missing else "which alone is not enough"
            saves = f"{'up to' if at_most else 'about'} {gain / GIB:.1f} GiB"
            gain_text = f"{saves}, {enough} for the {need.missing / GIB:.1f} GiB missing"
            yield replace(fix, expected_gain=gain_text)


def _known(need: MemoryNeed) -> Iterator[tuple[Fix, int | None, bool]]:
    """Each fix with the bytes it saves (None: not known), and whether that is an upper limit."""
    parts, forecast = need.parts, need.gains
    activations = parts.activations if parts is not None else None
    whole = parts.model if parts is not None else None
    if "smaller evaluation" in forecast:
        yield _SMALLER_EVALUATION, forecast["smaller evaluation"], False
    if activations != 0:
        gain = forecast.get("smaller batch", _share(activations, 1 / 2))
        yield _SMALLER_BATCH, gain, False
    if activations != 0 and not need.checkpointed:
        gain = forecast.get("checkpointing", activations)
        yield _CHECKPOINTING, gain, "checkpointing" not in forecast
    if need.optimizer in ("Adam", "AdamW"):
        states = parts.optimizer if parts is not None else None
        yield _EIGHT_BITS, forecast.get("8 bits", _share(states, 1 - SMALLER_STATES)), False
    if need.shards > need.sharded:
        engine, option = ("FSDP", "--use_fsdp")
        if need.deepspeed:
            engine, option = ("ZeRO-3", "--use_deepspeed --zero_stage 3")
        sharding = Fix(
            summary=f"shard parameters, gradients and states over {need.shards} GPUs with {engine}",
            paste=f"accelerate launch {option} --num_processes {need.shards} train.py",
            caution="transfers the parameters of each layer in every step; needs fast links",
        )
        yield sharding, _share(whole, 1 - need.sharded / need.shards), False
    if (need.sharded > 1 and not need.deepspeed) or "offload" in forecast:
        yield _OFFLOAD, forecast.get("offload", whole), "offload" not in forecast


def _share(size: int | None, share: float) -> int | None:
    return None if size is None else round(size * share)


_SMALLER_EVALUATION = Fix.python(
    summary="halve the batch of evaluation",
    paste="TrainingArguments(..., per_device_eval_batch_size=eval_batch_size // 2)",
    caution="a Trainer that computes metrics also keeps the logits of all samples, in host memory "
    "only with eval_accumulation_steps",
)
_SMALLER_BATCH = Fix.python(
    summary="halve the micro-batch and double gradient accumulation: the training stays the same",
    paste=(
        "DataLoader(..., batch_size=batch_size // 2)\n"
        "# and gradient accumulation × 2: zero_grad() and step() after every second backward()"
    ),
)
_CHECKPOINTING = Fix.python(
    summary="use gradient checkpointing, which recomputes activations instead of storing them",
    paste="model.gradient_checkpointing_enable()  # of transformers; else torch.utils."
    "checkpoint.checkpoint(block, x, use_reentrant=False)",
    caution="runs the forward pass of each layer twice: up to a third more time",
)
_EIGHT_BITS = Fix.python(
    summary="use an optimizer with 8-bit states",
    paste='optim = "adamw_bnb_8bit"  # of TrainingArguments, with bitsandbytes',
)
_OFFLOAD = Fix.python(
    summary="keep parameters and optimizer states, and the optimizer step, on the CPU",
    paste="fully_shard(block, offload_policy=CPUOffloadPolicy())",
    caution="makes the optimizer step several times slower",
)


def expandable(environment: Environment | None, unused: int) -> Fix | None:
    """The fix that turns on expandable segments; None: they are on.

    ``unused`` is the number of reserved bytes that are not allocated.
    """
    set_already = {
        name: value
        for name in ALLOCATOR
        if environment is not None and (value := environment.get(name)) is not None
    }
    if any(EXPANDS in value for value in set_already.values()):
        return None
    # The older name is known to every version.
    name, others = next(iter(set_already.items()), (ALLOCATOR[-1], ""))
    setting = f"{name}={','.join(filter(None, (others, EXPANDS)))}"
    return Fix(
        summary="use expandable segments, which reduce fragmentation of GPU memory",
        paste=f"export {setting}",
        expected_gain=f"up to {unused / GIB:.1f} GiB",
        environment=(setting,),
    )


def enough_gpus(sharded: int, own: int, room: int) -> int:
    """The smallest power of two of GPUs that can hold ``sharded`` bytes together; 0: none.

    Each GPU has ``room`` bytes, of which it needs ``own`` for itself.
    """
    left = room - own
    return 1 << (ceil(sharded / left) - 1).bit_length() if left > 0 else 0
