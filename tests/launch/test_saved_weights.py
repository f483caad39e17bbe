"""Methods that save a model, with configurations that let them save nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.files import FSDP
from tests.launch.reviewed import reviewed

FULL = FSDP.replace("SHARDED_STATE_DICT", "FULL_STATE_DICT")
TRAINS = """
    from transformers import Trainer, TrainingArguments
    args = TrainingArguments("out", bf16=True{options})
    trainer = Trainer(model=net(), args=args, train_dataset=data())
    trainer.train()
    {before}
    {saves}
"""
SAVES = 'trainer.save_model("out/final")'
WHOLE = 'trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")'
ZERO = """
    {{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {{"stage": {stage}{more}}}}}
"""
ENGINE = """
    import deepspeed
    engine, _, _, _ = deepspeed.initialize(model=net(), config="ds.json")
    engine.save_16bit_model("out", "last.bin")
"""
GATHERS = ', "stage3_gather_16bit_weights_on_model_save": true'


@pytest.mark.parametrize(
    ("options", "before", "saves", "config", "said"),
    [
        ("", "pass", SAVES, FSDP, "writes no weights"),
        (", save_only_model=True", "pass", "pass", FSDP, "raises ValueError"),
        ("", "pass", SAVES, FULL, ""),
        ("", WHOLE, SAVES, FSDP, ""),
        (", save_only_model=True", "pass", SAVES, FULL, ""),
        (", save_only_model=False", "pass", "pass", FSDP, ""),
        ("", "pass", "store.save_model('a')", FSDP, ""),
    ],
)
def test_a_trainer(
    tmp_path: Path, options: str, before: str, saves: str, config: str, said: str
) -> None:
    source = TRAINS.format(options=options, before=before, saves=saves)
    command = "accelerate launch --config_file fsdp.yaml train.py"
    found = reviewed(tmp_path, command, source, gpus=8, fsdp_yaml=config)
    told = [one.because for one in found if one.cause == "launch-config-invalid"]
    assert len(told) == bool(said)
    assert all(said in one for one in told)


@pytest.mark.parametrize(
    ("stage", "more", "wrong"),
    [
        ("3", "", True),
        ("3", GATHERS.replace("true", "false"), True),
        ("3", GATHERS, False),
        ("2", "", False),
    ],
)
def test_an_engine(tmp_path: Path, stage: str, more: str, wrong: bool) -> None:
    command = "deepspeed --num_gpus 4 train.py --deepspeed_config ds.json"
    config = ZERO.format(stage=stage, more=more)
    found = reviewed(tmp_path, command, ENGINE, ds_json=config)
    assert any("saves nothing" in one.because for one in found) is wrong


KEEPS = """
    import torch
    from accelerate import Accelerator
    accelerator = Accelerator()
    model, optimizer = accelerator.prepare(net(), adam())
    {}
    if accelerator.is_main_process:
        torch.save({}, "last.pt")
"""
OF_ACCELERATE = """
    distributed_type: DEEPSPEED
    deepspeed_config:
      zero_stage: {}
    num_machines: 1
    num_processes: 2
"""


@pytest.mark.parametrize(
    ("stage", "before", "saved", "wrong"),
    [
        (3, "", "accelerator.unwrap_model(model).state_dict()", True),
        (3, "", "model.state_dict()", True),
        (2, "", "accelerator.unwrap_model(model).state_dict()", False),
        (3, "state = accelerator.get_state_dict(model)", "state", False),
        (3, "", "optimizer_of(net).state_dict()", False),
        (3, "gather = deepspeed.zero.GatheredParameters(model)", "model.state_dict()", False),
    ],
)
def test_the_state_under_zero_3(
    tmp_path: Path, stage: int, before: str, saved: str, wrong: bool
) -> None:
    found = reviewed(
        tmp_path,
        "accelerate launch --config_file own.yaml train.py",
        KEEPS.format(before, saved),
        own_yaml=OF_ACCELERATE.format(stage),
    )
    assert any("the file holds empty tensors" in one.because for one in found) is wrong
