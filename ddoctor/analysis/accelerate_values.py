"""Values of accelerate's file that accelerate refuses.

Source: accelerate/utils/dataclasses.py, FullyShardedDataParallelPlugin and DeepSpeedPlugin;
utils/constants.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.mistake import Mistake
from ddoctor.evidence.launch import Launch
from ddoctor.models import Confidence, Fix

VALUES = {
    "fsdp.sharding_strategy": (
        *("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"),
        "_HYBRID_SHARD_ZERO2",
    ),
    "fsdp.state_dict_type": ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"),
    "fsdp.auto_wrap_policy": ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"),
    "fsdp.backward_prefetch": ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
}
"""Each may also be a number, or empty."""
OF_FILE = "deepspeed-file"
IN_FILE = {
    "accumulation": "gradient_accumulation_steps",
    "zero-stage": "zero_stage",
    "precision": "mixed_precision",
    "deepspeed.gradient_clipping": "gradient_clipping",
    "deepspeed.offload_optimizer_device": "offload_optimizer_device",
    "deepspeed.offload_param_device": "offload_param_device",
    "deepspeed.zero3_save_16bit_model": "zero3_save_16bit_model",
}
"""What DeepSpeed's own file says, by the names of settings and of accelerate's keys."""


def of_accelerate(plan: LaunchPlan) -> Iterator[Mistake]:
    """All of them."""
    if plan.strategy.startswith("FSDP"):
        yield from _unknown_values(plan.launch)
    yield from _beside_a_file(plan.launch)


def _unknown_values(launch: Launch) -> Iterator[Mistake]:
    for name, known in VALUES.items():
        one = launch.get(name)
        value = one.value.strip().upper() if one is not None and one.file else ""
        # A word of more letters than a number, and no placeholder.
        if one is None or value in ("", "NULL", "NONE", *known) or not value.isidentifier():
            continue
        near = get_close_matches(value, known, 1)
        key = name.replace(".", "_")
        yield Mistake(
            because=f"{key} is {one.value} ({one.at}), and accelerate knows "
            f"{', '.join(word for word in known if word[0] != '_')}",
            at=one,
            fix=Fix(
                summary="write one of them",
                paste=f"{key}: {(near or known)[0]}",
                language="yaml",
            ),
            confidence=Confidence.LIKELY,
        )


def _beside_a_file(launch: Launch) -> Iterator[Mistake]:
    """accelerate refuses keys that stand in the file of DeepSpeed that it is to read."""
    named = launch.get(OF_FILE)
    beside = [
        (key, one)
        for name, key in IN_FILE.items()
        for one in launch.all(name)
        # On the line, the precision replaces that of the file before it is judged.
        if named is not None and named.file and one.file == named.file
        if name != "precision" or one is launch.get(name)
    ]
    if named is not None and beside:
        keys = " and ".join(f"{key} ({one.at})" for key, one in beside[:2])
        yield Mistake(
            because=f"{keys} stand{'s' * (len(beside) == 1)} next to deepspeed_config_file "
            f"({named.at}), whose file is to say that: accelerate refuses both",
            at=beside[0][1],
            fix=Fix(
                summary=f"leave it to {named.value}",
                paste="# " + "\n# ".join(f"{key}: {one.value}" for key, one in beside),
                language="yaml",
            ),
            confidence=Confidence.LIKELY,
        )
