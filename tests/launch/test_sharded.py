"""Sharded models of which one rank alone asks for something."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.files import FSDP, TWO_GPUS
from tests.launch.reviewed import causes

STATE = """
    from accelerate import Accelerator
    class Saver:
        def __init__(self, accelerator):
            self.acc = accelerator
        def save(self, model):
            {before}state = self.acc.get_state_dict(model)
            if self.acc.is_main_process:
                {inside}torch.save(state, "model.pt")
"""
GENERATES = """
    import torch
    from accelerate import Accelerator
    accelerator = Accelerator()
    {test}text = model.generate(ids)
"""
FIT = """
    import lightning as L
    class Keep(L.Callback):
        def on_train_epoch_end(self, trainer, module):
            if trainer.current_epoch % 5 == 0{test}:
                trainer.save_checkpoint("last.ckpt")
    L.Trainer(devices=4, strategy="ddp", callbacks=[Keep()]).fit(model)
"""
ENGINE = """
    import deepspeed
    engine, optimizer, _, _ = deepspeed.initialize(model=model, config="ds.json")
    {test}engine.save_checkpoint("out")
"""
ACCELERATE = "accelerate launch --config_file fsdp.yaml train.py"


@pytest.mark.parametrize(
    ("before", "inside", "config", "wrong"),
    [
        ("pass  # ", "state = self.acc.get_state_dict(model)\n                ", FSDP, True),
        ("", "", FSDP, False),
        ("pass  # ", "state = self.acc.get_state_dict(model)\n                ", TWO_GPUS, False),
    ],
)
def test_the_state_of_a_sharded_model(
    tmp_path: Path, before: str, inside: str, config: str, wrong: bool
) -> None:
    source = STATE.format(before=before, inside=inside)
    assert (
        "rank0-only-collective" in causes(tmp_path, ACCELERATE, source, fsdp_yaml=config)
    ) is wrong


@pytest.mark.parametrize(
    ("test", "config", "wrong"),
    [
        ("if accelerator.is_main_process:\n        ", FSDP, True),
        ("", FSDP, False),
        ("if accelerator.is_main_process:\n        ", TWO_GPUS, False),
    ],
)
def test_a_sharded_model_that_generates(
    tmp_path: Path, test: str, config: str, wrong: bool
) -> None:
    found = causes(tmp_path, ACCELERATE, GENERATES.format(test=test), fsdp_yaml=config)
    assert ("sharded-forward-not-synced" in found) is wrong


@pytest.mark.parametrize(("test", "wrong"), [(" and trainer.is_global_zero", True), ("", False)])
def test_a_checkpoint_of_lightning(tmp_path: Path, test: str, wrong: bool) -> None:
    found = causes(tmp_path, "python train.py", FIT.format(test=test))
    assert ("rank0-only-collective" in found) is wrong


@pytest.mark.parametrize(
    ("test", "wrong"), [("if torch.distributed.get_rank() == 0:\n        ", True), ("", False)]
)
def test_a_checkpoint_of_deepspeed(tmp_path: Path, test: str, wrong: bool) -> None:
    source = "    import torch\n" + ENGINE.format(test=test)
    found = causes(tmp_path, "deepspeed --num_gpus 4 train.py", source)
    assert ("rank0-only-collective" in found) is wrong
