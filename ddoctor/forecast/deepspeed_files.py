"""DeepSpeed's file for a training as its plan recommends, and accelerate's settings for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ddoctor.evidence.plan import GPUS_PER_HOST, Plan, PlanRow, ZeroBuffers
from ddoctor.forecast.zero import USUAL

NAME = "deepspeed.json"
# The folder of DeepSpeed's own examples.
NVME = "/local_nvme"
CLIPPED = 1.0
"""The norm that accelerate and transformers' TrainingArguments clip gradients to by default."""


def configuration(plan: Plan, row: PlanRow) -> Iterator[str]:
    """Yield the lines of DeepSpeed's file, with only keys that it knows."""
    found: dict[str, Any] = {
        # accelerate fills in "auto" from the loader.
        "train_micro_batch_size_per_gpu": plan.micro_batch or "auto",
        "gradient_accumulation_steps": row.accumulation,
        "gradient_clipping": CLIPPED,
        "bf16": {"enabled": plan.precision.startswith("bf16")},
        "fp16": {"enabled": plan.precision == "fp16-mixed"},
        "zero_optimization": _zero(row, plan.zero or USUAL),
        # DeepSpeed refuses other optimizers than its own without it.
        "zero_allow_untested_optimizer": True,
    }
    yield from json.dumps(found, indent=2).splitlines()


def for_accelerate(row: PlanRow, folder: Path) -> Iterator[str]:
    """Yield the lines of accelerate's file on a file of DeepSpeed in this folder."""
    if row.strategy == "zero-3-nvme":
        yield f"# Set both nvme_path in {NAME} to a folder on an NVMe disk of each host, and raise"
        yield "# buffer_size if a rank's shard of a parameter has more elements."
    yield "deepspeed_config:"
    yield f"  deepspeed_config_file: {json.dumps(str(folder / NAME))}"
    # Each rank creates only its share of the weights.
    yield f"  zero3_init_flag: {str(_stage(row) == 3).lower()}"
    if row.gpus > GPUS_PER_HOST:
        # Without pdsh, which is the default.
        yield "  deepspeed_multinode_launcher: standard"


def exported(row: PlanRow, folder: Path) -> Mapping[str, str]:
    """Return what `accelerate launch` sets for its ranks (accelerate/utils/launch.py)."""
    return {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(folder / NAME),
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": str(_stage(row) == 3).lower(),
    }


def _zero(row: PlanRow, buffers: ZeroBuffers) -> dict[str, Any]:
    stage = _stage(row)
    found: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": buffers.overlap,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": buffers.reduce_bucket,
    }
    device = {"zero-3-nvme": "nvme"}.get(row.strategy, "cpu")
    place = {"nvme_path": NVME} if device == "nvme" else {}
    if row.offloads:
        found["offload_optimizer"] = {"device": device, **place, "pin_memory": True}
    if stage < 3:
        return {**found, "allgather_bucket_size": buffers.reduce_bucket}
    if row.strategy in ("zero-3-cpu", "zero-3-nvme"):
        size = {"buffer_size": buffers.nvme_buffer} if device == "nvme" else {}
        found["offload_param"] = {"device": device, **place, **size, "pin_memory": True}
    return {
        **found,
        "stage3_prefetch_bucket_size": buffers.prefetch_bucket,
        "stage3_max_live_parameters": buffers.max_live,
        "stage3_param_persistence_threshold": buffers.persistence,
        "sub_group_size": buffers.sub_group,
        # Otherwise the saved model has no weights.
        "stage3_gather_16bit_weights_on_model_save": True,
    }


def _stage(row: PlanRow) -> int:
    return int(row.strategy.split("-")[1])
