"""Scripts whose library trains the model: what their arguments say of precision and memory."""

from __future__ import annotations

import shlex
from pathlib import Path
from textwrap import dedent

import pytest

from ddoctor.evidence.section import Evidence
from ddoctor.launch.review import review
from ddoctor.report.launch import starts
from tests.launch.files import TWO_GPUS
from tests.launch.reviewed import causes, reviewed

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


TRAINS = """
    from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

    (training,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-1B")
    Trainer(model=model, args=training, train_dataset=data()).train()
"""
TORCHRUN = "torchrun --nproc-per-node 2 train.py --output_dir out"
BEST = "--load_best_model_at_end --eval_strategy steps"


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ("--bf16 --fp16", "are both on"),
        ("--bf16 true --fp16 false", ""),
        ("--bf16", ""),
        (f"{BEST} --save_steps 500 --eval_steps 300", "is no multiple of eval_steps 300"),
        (f"{BEST} --save_steps 600 --eval_steps 300", ""),
        ("--eval_strategy steps --save_steps 500 --eval_steps 300", ""),
        (f"{BEST} --save_strategy best --save_steps 500 --eval_steps 300", ""),
        (f"{BEST} --save_steps 0.2 --eval_steps 0.1", ""),
        ("--max_steps 100 --warmup_steps 500", "it never reaches its value"),
        ("--max_steps 1000 --warmup_steps 500", ""),
        ("--warmup_steps 500", ""),
    ],
)
def test_arguments_that_the_trainer_refuses(tmp_path: Path, more: str, wrong: str) -> None:
    found = reviewed(tmp_path, f"{TORCHRUN} {more}", TRAINS)
    told = [one.because for one in found if one.cause == "launch-config-invalid"]
    assert any(wrong in one for one in told) if wrong else not told


@pytest.mark.parametrize(
    ("more", "source", "strategy"),
    [
        ("", TRAINS, "DDP"),
        ("--fsdp 'full_shard auto_wrap'", TRAINS, "FSDP"),
        ("--fsdp full_shard --fsdp_config own.json", TRAINS, "FSDP1"),
        ("--fsdp ''", TRAINS, "DDP"),
        # Its own argument, which may mean anything.
        ("--fsdp full_shard", "import torch\ntrain()\n", None),
    ],
)
def test_how_the_trainer_divides_the_work(
    tmp_path: Path, more: str, source: str, strategy: str | None
) -> None:
    (tmp_path / "train.py").write_text(dedent(source))
    (tmp_path / "own.json").write_text('{"fsdp_version": 1}')
    sections = review(shlex.split(f"{TORCHRUN} {more}"), tmp_path)
    told = dict(starts(Evidence([*sections]))).get("parallelism")
    assert told is None if strategy is None else (told or "").startswith(strategy)


@pytest.mark.parametrize(
    ("block", "fsdp", "wrong"),
    [
        ("GPT2Block", "full_shard auto_wrap", True),
        ("LlamaDecoderLayer", "full_shard auto_wrap", False),
        ("OwnBlock", "full_shard auto_wrap", False),
        ("GPT2Block", "", False),
    ],
)
def test_the_block_that_the_trainer_wraps(
    tmp_path: Path, block: str, fsdp: str, wrong: bool
) -> None:
    own = f'{{"transformer_layer_cls_to_wrap": ["{block}"]}}'
    command = f"{TORCHRUN} --fsdp '{fsdp}' --fsdp_config own.json"
    assert ("fsdp-wrap-policy-wrong" in causes(tmp_path, command, TRAINS, own_json=own)) is wrong


CHECKPOINTS = "--gradient_checkpointing true --ddp_find_unused_parameters true"
KWARGS = "--gradient_checkpointing_kwargs '{{\"use_reentrant\": {}}}'"


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        (f"{CHECKPOINTS} {KWARGS.format('true')}", True),
        (f"{CHECKPOINTS} {KWARGS.format('false')}", False),
        (CHECKPOINTS, False),
        (f"--gradient_checkpointing true {KWARGS.format('true')}", False),
        (f"{CHECKPOINTS} {KWARGS.format('true')} --gradient_checkpointing false", False),
        (f"{CHECKPOINTS} {KWARGS.format('true')} --fsdp full_shard", False),
    ],
)
def test_reentrant_checkpoints_by_arguments(tmp_path: Path, more: str, wrong: bool) -> None:
    found = causes(tmp_path, f"{TORCHRUN} {more}", TRAINS)
    assert ("activation-checkpoint-reentrant" in found) is wrong
