"""Optimizers that DeepSpeed offloads to the CPU, or is asked to."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Severity
from tests.launch.reviewed import reviewed

SLOW = "cpu-offload-slow-optimizer"
COMMAND = "deepspeed --num_gpus 4 train.py --deepspeed_config ds.json"
SOURCE = """
    import torch, deepspeed
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    optimizer = {made}
    engine, _, _, _ = deepspeed.initialize(model=net(), config="ds.json", optimizer=optimizer)
"""
OF_TORCH = "torch.optim.AdamW(net().parameters())"
OF_DEEPSPEED = "DeepSpeedCPUAdam(net().parameters())"
ZERO = """
    {{"train_micro_batch_size_per_gpu": 2, {more}
      "zero_optimization": {{"stage": {stage}, "offload_optimizer": {{"device": "{device}"}}}}}}
"""
ALLOWED = '"zero_force_ds_cpu_optimizer": false,'
ASKED = '"optimizer": {"type": "AdamW", "params": {"torch_adam": true}},'


@pytest.mark.parametrize(
    ("made", "more", "slow"),
    [
        (OF_TORCH, ALLOWED, True),
        ("None", ASKED, True),
        (OF_DEEPSPEED, ALLOWED, False),
        ("None", ASKED.replace("true", "false"), False),
        ("own(net())", ALLOWED, False),
    ],
)
def test_the_optimizer_of_torch(tmp_path: Path, made: str, more: str, slow: bool) -> None:
    config = ZERO.format(stage=2, device="cpu", more=more)
    found = reviewed(tmp_path, COMMAND, SOURCE.format(made=made), ds_json=config)
    (told,) = [one for one in found if one.cause == SLOW]
    assert told.severity is Severity.NOTE
    assert ("5 to 7 times faster" in told.because) is slow


@pytest.mark.parametrize(
    ("stage", "device", "wrong"), [(0, "cpu", True), (1, "cpu", False), (0, "none", False)]
)
def test_offloading_without_zero(tmp_path: Path, stage: int, device: str, wrong: bool) -> None:
    config = ZERO.format(stage=stage, device=device, more="")
    found = reviewed(tmp_path, COMMAND, SOURCE.format(made="None"), ds_json=config)
    assert any("from stage 1 on" in one.because for one in found) is wrong
    assert not wrong or all(one.cause != SLOW for one in found)
