"""Takes DeepSpeed's stage, offloading and buffers from the configuration of a training.

Keys of deepspeed/runtime/zero/config.py, and of accelerate's deepspeed_config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ddoctor.evidence.launch import Setting
from ddoctor.evidence.limits import LARGEST
from ddoctor.evidence.plan import Strategy, ZeroBuffers
from ddoctor.forecast.zero import USUAL, Zero

OF = "zero_optimization."
STAGE = (f"{OF}stage", "deepspeed_config.zero_stage")
OPTIMIZER = (f"{OF}offload_optimizer.device", "deepspeed_config.offload_optimizer_device")
PARAMETERS = (f"{OF}offload_param.device", "deepspeed_config.offload_param_device")
FILE = ("deepspeed_config.deepspeed_config_file", "deepspeed")
"""Keys of accelerate, and of axolotl, LLaMA-Factory and transformers."""
BUFFERS: Mapping[str, str] = {
    f"{OF}reduce_bucket_size": "reduce_bucket",
    f"{OF}overlap_comm": "overlap",
    f"{OF}stage3_prefetch_bucket_size": "prefetch_bucket",
    f"{OF}stage3_max_live_parameters": "max_live",
    f"{OF}stage3_param_persistence_threshold": "persistence",
    f"{OF}sub_group_size": "sub_group",
    f"{OF}offload_param.buffer_size": "nvme_buffer",
}
STRATEGIES: Mapping[tuple[str, str, str], Strategy] = {
    ("1", "none", "none"): "zero-1",
    ("2", "none", "none"): "zero-2",
    ("2", "cpu", "none"): "zero-2-offload",
    ("3", "none", "none"): "zero-3",
    ("3", "cpu", "none"): "zero-3-offload",
    ("3", "cpu", "cpu"): "zero-3-cpu",
    ("3", "nvme", "nvme"): "zero-3-nvme",
}
"""By the stage, and the devices of the optimizer and of the parameters."""


@dataclass(frozen=True)
class ZeroFile:
    """What a file says of DeepSpeed."""

    zero: Zero
    settings: tuple[Setting, ...]
    """Where it says so."""
    beyond: tuple[Setting, ...]
    """What no plan knows."""


def named(settings: Sequence[Setting], path: Path) -> Path | None:
    """Return DeepSpeed's file that a file names, by this folder or its own; None: there is none."""
    for one in settings:
        if one.name in FILE:
            places = (Path(one.value), path.parent / one.value)
            return next((place for place in places if place.is_file()), None)
    return None


def read(settings: Sequence[Setting]) -> ZeroFile | None:
    """Return what a file says of DeepSpeed; None: it does not use it, or only without ZeRO."""
    by_key = {one.name: one for one in settings}
    stage = _first(by_key, STAGE)
    if stage is None:
        kind = by_key.get("distributed_type")
        by_accelerate = kind if kind is not None and kind.value.upper() == "DEEPSPEED" else None
        uses = by_accelerate or _first(by_key, FILE)
        return None if uses is None else ZeroFile(Zero(), (_engine(uses),), ())
    devices = [_first(by_key, keys) for keys in (OPTIMIZER, PARAMETERS)]
    optimizer, parameters = (one.value.lower() if one is not None else "none" for one in devices)
    plain = STRATEGIES.get((stage.value, "none", "none"))
    if plain is None:
        return None
    strategy = STRATEGIES.get((stage.value, optimizer, parameters))
    buffers, taken, beyond = _buffers(by_key)
    told = [one for one in devices if one is not None and one.value.lower() != "none"]
    if strategy is None:
        beyond += told
    else:
        taken = [*told, *taken]
    return ZeroFile(
        Zero(buffers, strategy or plain), (_engine(stage), stage, *taken), tuple(beyond)
    )


def _buffers(by_key: Mapping[str, Setting]) -> tuple[ZeroBuffers, list[Setting], list[Setting]]:
    """Return the buffers, where they stand, and those that only accelerate knows ("auto")."""
    found: dict[str, Any] = {}
    taken, beyond = [], []
    for key, field in BUFFERS.items():
        one = by_key.get(key)
        if one is None:
            continue
        if one.value.lower() == "auto":
            beyond.append(one)
        elif field == "overlap":
            found[field] = one.value.lower() == "true"
            taken.append(one)
        else:
            with suppress(ValueError):
                if 0 < (size := float(one.value)) <= LARGEST:
                    found[field] = int(size)
                    taken.append(one)
    return msgspec.structs.replace(USUAL, **found), taken, beyond


def _first(by_key: Mapping[str, Setting], keys: Sequence[str]) -> Setting | None:
    return next((by_key[key] for key in keys if key in by_key), None)


def _engine(place: Setting) -> Setting:
    return msgspec.structs.replace(place, name="--engine", value="deepspeed")
