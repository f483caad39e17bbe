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
SAVES = """
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration
    accelerator = Accelerator({project})
    model, optimizer = accelerator.prepare(net(), adam())
    for epoch in range(4):
        {test}accelerator.save_state("out")
"""
NUMBERED = "project_config=ProjectConfiguration(automatic_checkpoint_naming=True)"
ON_MAIN = "if accelerator.is_main_process:\n            "
ZERO_2 = """
    distributed_type: DEEPSPEED
    deepspeed_config:
      zero_stage: 2
    num_machines: 1
    num_processes: 8
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
        # A server has a model of its own.
        (ON_MAIN + "sample = client.generate(ids)\n    ", FSDP, False),
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


@pytest.mark.parametrize(
    ("test", "project", "config", "wrong"),
    [
        (ON_MAIN, "", FSDP, True),
        (ON_MAIN, "", ZERO_2, True),
        (ON_MAIN, NUMBERED, TWO_GPUS, True),
        # Under DDP, one rank saves alone.
        (ON_MAIN, "", TWO_GPUS, False),
        ("", "", FSDP, False),
        ("", "", ZERO_2, False),
        (ON_MAIN.replace(":", " or accelerator.distributed_type == DEEPSPEED:"), "", ZERO_2, False),
        ("if epoch % 2:\n            ", NUMBERED, FSDP, False),
    ],
)
def test_the_state_of_a_training(
    tmp_path: Path, test: str, project: str, config: str, wrong: bool
) -> None:
    source = SAVES.format(test=test, project=project)
    found = causes(tmp_path, ACCELERATE, source, fsdp_yaml=config)
    assert ("rank0-only-collective" in found) is wrong


def test_the_state_of_a_trainer(tmp_path: Path) -> None:
    source = """
        from transformers import Trainer
        trainer = Trainer(model=net())
        trainer.train()
        if trainer.is_world_process_zero():
            trainer.save_state()
    """
    assert "rank0-only-collective" not in causes(tmp_path, ACCELERATE, source, fsdp_yaml=FSDP)


SAVED = """
    import torch
    from accelerate import Accelerator
    accelerator = Accelerator()
    teacher = net()
    model, optimizer = accelerator.prepare(net(), adam())
    {}
"""
ON_ALL = (
    "state = {}.state_dict()\n    if accelerator.is_main_process:\n        torch.save(state, 'a')"
)
BY_ONE = "if accelerator.is_main_process:\n        torch.save({}.state_dict(), 'model.pt')"


@pytest.mark.parametrize(
    ("saves", "config", "wrong"),
    [
        (BY_ONE.format("model"), FSDP, True),
        (ON_ALL.format("model"), FSDP, False),
        # Nothing wraps it.
        (BY_ONE.format("teacher"), FSDP, False),
        (BY_ONE.format("model"), TWO_GPUS, False),
        (BY_ONE.format("model"), ZERO_2, False),
    ],
)
def test_the_state_that_one_rank_asks_for(
    tmp_path: Path, saves: str, config: str, wrong: bool
) -> None:
    found = causes(tmp_path, ACCELERATE, SAVED.format(saves), fsdp_yaml=config)
    assert ("rank0-only-collective" in found) is wrong
