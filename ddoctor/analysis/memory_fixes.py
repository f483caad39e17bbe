"""What makes a training need less memory on each GPU, the cheapest first, and by how much."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from ddoctor.evidence.environment import Environment
from ddoctor.evidence.plan import MemoryParts, Remedy
from ddoctor.models import Fix

GIB = 2**30
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The newer name comes first, as in torch since 2.9."""
EXPANDS = "expandable_segments:True"
# Of AdamW's states, 8 bits in place of 32 (bitsandbytes).
SMALLER_STATES = 1 / 4
# Of what is missing: less would not be worth the trouble.
SLIGHT = 0.1


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """What is there already, in bytes of one GPU, and how much of it is too much."""

    parts: MemoryParts | None
    """None: it is not known what is how large."""
    missing: int
    optimizer: str = ""
    """As torch calls it; empty: not known."""
    checkpointed: bool = False
    sharded: int = 1
    """Over so many GPUs; 1: each has all of it."""
    shards: int = 0
    """Over how many it could be; 0: over no more."""
    gains: Mapping[Remedy, int] = field(default_factory=dict)
    """Bytes that remedies save by a forecast of their own, in place of what the parts tell."""


def remedies(need: MemoryNeed) -> Iterator[Fix]:
    """In the order of what they cost, and none that is on already or would save next to nothing."""
    for fix, gain, at_most in _known(need):
        if gain is None or not need.missing:
            yield fix
        elif gain >= SLIGHT * need.missing:
            enough = "which is enough" if gain >= need.missing else "which alone is not enough"
            saves = f"{'up to' if at_most else 'about'} {gain / GIB:.1f} GiB"
            told = f"{saves} where {need.missing / GIB:.1f} are missing, {enough}"
            yield replace(fix, expected_gain=told)


def _known(need: MemoryNeed) -> Iterator[tuple[Fix, int | None, bool]]:
    """Each with the bytes that it saves, and whether that is the most; None: it is not known."""
    parts, forecast = need.parts, need.gains
    activations = parts.activations if parts is not None else None
    whole = parts.parameters + parts.gradients + parts.optimizer if parts is not None else None
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
        yield _sharding(need.shards), _share(whole, 1 - need.sharded / need.shards), False
    if need.sharded > 1 or "offload" in forecast:
        yield _OFFLOAD, forecast.get("offload", whole), "offload" not in forecast


def _share(size: int | None, share: float) -> int | None:
    return None if size is None else round(size * share)


_SMALLER_BATCH = Fix(
    summary="half the micro-batch, and twice as many of them for one step: the same training",
    paste=(
        "DataLoader(..., batch_size=batch_size // 2)\n"
        "# and gradient accumulation × 2: zero_grad() and step() after every second backward()"
    ),
    language="python",
)
_CHECKPOINTING = Fix(
    summary="gradient checkpointing: activations are computed again, not kept",
    paste="model.gradient_checkpointing_enable()  # of transformers; else torch.utils."
    "checkpoint.checkpoint(block, x, use_reentrant=False)",
    language="python",
    caution="each layer's forward pass runs twice: up to a third more time",
)
_EIGHT_BITS = Fix(
    summary="optimizer states of 8 bits",
    paste='optim = "adamw_bnb_8bit"  # of TrainingArguments, with bitsandbytes',
    language="python",
)
_OFFLOAD = Fix(
    summary="keep parameters and states, and the optimizer's step, on the CPU",
    paste="fully_shard(block, offload_policy=CPUOffloadPolicy())",
    language="python",
    caution="the step of the optimizer gets several times slower",
)


def _sharding(gpus: int) -> Fix:
    return Fix(
        summary=f"shard parameters, gradients and states over {gpus} GPUs with FSDP",
        paste=f"accelerate launch --use_fsdp --num_processes {gpus} train.py",
        caution="each layer's parameters travel in every step: fast links between the GPUs",
    )


def expandable(environment: Environment | None, unused: int) -> Fix | None:
    """Segments that grow, where so many bytes are reserved and not used; None: they do already."""
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
        summary="let the allocator grow its segments, so that less of them is of no use",
        paste=f"export {setting}",
        expected_gain=f"up to {unused / GIB:.1f} GiB",
        environment=(setting,),
    )


def enough_gpus(sharded: int, own: int, room: int) -> int:
    """The smallest power of two of GPUs over which ``sharded`` bytes can be spread where each has
    ``own`` besides, and ``room`` for both; 0: none is."""
    left = room - own
    return 1 << (ceil(sharded / left) - 1).bit_length() if left > 0 else 0
