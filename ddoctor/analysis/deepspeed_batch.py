"""The numbers of a batch that DeepSpeed completes from the others.

Source: deepspeed/runtime/config.py, _set_batch_related_parameters.
"""

from __future__ import annotations

from msgspec.structs import replace as with_fields

from ddoctor.evidence.launch import Launch, Setting

STEPS = "deepspeed.gradient_accumulation_steps"
MICRO = "deepspeed.train_micro_batch_size_per_gpu"
BATCH = "deepspeed.train_batch_size"
OF_TRAINER = "arg.per_device_train_batch_size"
"""With it, transformers gives DeepSpeed all of the numbers."""


def micro_batch(launch: Launch, ranks: int | None) -> Setting | None:
    """The micro-batch, where it follows from the whole batch alone, or with the accumulation."""
    whole, steps = launch.get(BATCH), launch.get(STEPS)
    if launch.get(MICRO, OF_TRAINER) is not None or whole is None or not whole.number or not ranks:
        return None
    times = 1 if steps is None else steps.number
    if not times or whole.number % (ranks * times):
        return None
    return with_fields(whole, name=MICRO, value=str(whole.number // (ranks * times)))


def accumulation(launch: Launch, ranks: int | None) -> Setting | None:
    """The accumulation, where it follows from the whole batch and the micro-batch."""
    whole, micro = launch.get(BATCH), launch.get(MICRO)
    if launch.get(STEPS, OF_TRAINER) is not None or whole is None or not whole.number:
        return None
    each = (micro.number or 0) * (ranks or 0) if micro is not None else 0
    if not each or whole.number % each:
        return None
    return with_fields(whole, name=STEPS, value=str(whole.number // each))
