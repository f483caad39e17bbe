"""Scripts whose library trains the model: what their arguments say of precision and memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.files import TWO_GPUS
from tests.launch.reviewed import causes

SCRIPT = """
    from transformers import AutoTokenizer
    from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser, get_peft_config

    parser = TrlParser((SFTConfig, ModelConfig))
    training, model = parser.parse_args_and_config()
    trainer = SFTTrainer(
        model={model}, args=training, train_dataset=data, peft_config=get_peft_config(model)
    )
    trainer.train()
"""
BY_NAME = SCRIPT.format(model="model.model_name_or_path")
COMMAND = "accelerate launch --config_file two.yaml train.py --config own.yaml"
CONFIG = "model_name_or_path: a/Large-{size}B\nlearning_rate: 2e-5\n{more}\n"


@pytest.mark.parametrize(
    ("size", "more", "source", "wrong"),
    [
        (70, "", BY_NAME, True),
        (70, "torch_dtype: bfloat16", BY_NAME, True),
        (8, "", BY_NAME, False),
        (70, "use_peft: true", BY_NAME, False),
        (70, "load_in_4bit: true", BY_NAME, False),
        (70, "optim: paged_adamw_8bit", BY_NAME, False),
        (70, "", SCRIPT.format(model="made(model)"), False),
        (70, "", BY_NAME.replace("trainer.train", "freeze(model)\n    trainer.train"), False),
    ],
)
def test_a_model_that_the_trainer_loads(
    tmp_path: Path, size: int, more: str, source: str, wrong: bool
) -> None:
    own = CONFIG.format(size=size, more=more)
    found = causes(tmp_path, COMMAND, source, gpus=0, two_yaml=TWO_GPUS, own_yaml=own)
    assert ("model-does-not-fit" in found) is wrong


@pytest.mark.parametrize(
    ("launch", "own", "wrong"),
    [
        ("bf16", "fp16: true", True),
        ("fp16", "bf16: true", True),
        ("bf16", "bf16: true", False),
        ("bf16", "", False),
        ("'no'", "bf16: true", False),
    ],
)
def test_two_types_of_16_bits(tmp_path: Path, launch: str, own: str, wrong: bool) -> None:
    config = TWO_GPUS.replace("mixed_precision: bf16", f"mixed_precision: {launch}")
    given = CONFIG.format(size=1, more=own)
    found = causes(tmp_path, COMMAND, BY_NAME, gpus=2, two_yaml=config, own_yaml=given)
    assert ("mixed-precision-overridden" in found) is wrong
