"""What a plan takes from the configuration of a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddoctor.errors import DoctorError
from ddoctor.forecast import config_files
from ddoctor.forecast.options import PlanRequest

AXOLOTL = """\
base_model: org/model-7b
adapter: qlora
load_in_4bit: true
lora_r: 32
lora_target_linear: true
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 3
optimizer: adamw_bnb_8bit
bf16: auto
gradient_checkpointing: true
flash_attention: true
"""
LLAMA_FACTORY = """\
model_name_or_path: org/model-7b
stage: sft
finetuning_type: lora
lora_rank: 16
lora_target: q_proj,v_proj
cutoff_len: 2048
per_device_train_batch_size: 1
bf16: true
flash_attn: fa2
"""
TRL = """\
model_name_or_path: org/model-7b
max_length: 1024
per_device_train_batch_size: 8
optim: adamw_torch_fused
bf16: true
gradient_checkpointing: false
use_liger_kernel: true
"""
TORCHTITAN = """\
[model]
name = "llama3"
[optimizer]
name = "AdamW"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
tensor_parallel_degree = 8
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""
COMPILED = (
    "torch_compile: true",
    "torch_compile_backend: inductor",
    "dynamo_config:\n  dynamo_backend: INDUCTOR",
    "dynamo_backend: eager",
)
ACCELERATE = "mixed_precision: bf16\nnum_processes: 8\n"
DEEPSPEED = """\
{"train_micro_batch_size_per_gpu": 4, "fp16": {"enabled": true}, "bf16": {"enabled": false},
 "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}
"""


def read(
    folder: Path, *texts: str, suffix: str = ".yaml", **options: Any
) -> tuple[PlanRequest, config_files.Taken]:
    paths = [folder / f"{number}{suffix}" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return config_files.completed(PlanRequest(configs=paths, **options))


def given(wanted: PlanRequest) -> dict[str, object]:
    """What differs from a plan without a file."""
    usual, found = vars(PlanRequest()), vars(wanted)
    differs = {name: value for name, value in found.items() if value != usual[name]}
    del differs["configs"]
    return {name: getattr(value, "text", value) for name, value in differs.items()}


def test_axolotl(tmp_path: Path) -> None:
    wanted, taken = read(tmp_path, AXOLOTL, gpus="2")
    assert given(wanted) == {
        "model": "org/model-7b",
        "sequence": 4096,
        "micro_batch": 2,
        "global_batch": 16,
        "epochs": 3.0,
        "optimizer": "adamw_bnb_8bit",
        "precision": "bf16",
        "checkpointing": "every",
        "attention": "flash",
        "lora": "r=32,fp32",
        "quantize": "nf4-double",
        "gpus": "2",
    }
    assert ("--sequence", "4096", 6) in {(one.name, one.value, one.line) for one in taken.settings}
    assert [(one.name, one.at) for one in taken.beyond] == [("sample_packing", "0.yaml:7")]


def test_llama_factory(tmp_path: Path) -> None:
    wanted, taken = read(tmp_path, LLAMA_FACTORY)
    assert given(wanted) == {
        "model": "org/model-7b",
        "sequence": 2048,
        "micro_batch": 1,
        "precision": "bf16",
        # It checkpoints unless it is told not to.
        "checkpointing": "every",
        "attention": "flash",
        "lora": "r=16,targets=q_proj+v_proj,fp32",
    }
    assert taken.beyond == ()


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        # transformers/training_args.py: 8, unless a file says otherwise.
        (TRL + "eval_strategy: steps\n", 8),
        (TRL + "eval_strategy: epoch\nper_device_eval_batch_size: 2\n", 2),
        (LLAMA_FACTORY + "val_size: 0.1\n", 8),
        (AXOLOTL + "val_set_size: 0.05\neval_batch_size: 6\n", 6),
        # axolotl evaluates with the micro-batch.
        (AXOLOTL + "val_set_size: 0.05\n", None),
        (TRL + "eval_strategy: 'no'\nper_device_eval_batch_size: 32\n", None),
        (TRL + "per_device_eval_batch_size: 32\n", None),
        (AXOLOTL + "val_set_size: 0\neval_batch_size: 6\n", None),
        (AXOLOTL + "rl: grpo\nval_set_size: 0.05\neval_batch_size: 6\n", None),
    ],
)
def test_batches_of_an_evaluation(tmp_path: Path, text: str, samples: int | None) -> None:
    wanted, _ = read(tmp_path, text)
    assert wanted.eval_batch == samples


def test_no_evaluation_of_a_model_in_numbers(tmp_path: Path) -> None:
    wanted, _ = read(tmp_path, TRL + "eval_strategy: steps\n", params="7B")
    assert wanted.eval_batch is None
    wanted, _ = read(tmp_path, TRL + "eval_strategy: steps\n", tp=2)
    assert wanted.eval_batch is None


def test_weights_that_are_all_trained_stay_in_float32(tmp_path: Path) -> None:
    text = LLAMA_FACTORY.replace("type: lora", "type: full")
    wanted, _ = read(tmp_path, text + "disable_gradient_checkpointing: true\n")
    assert (wanted.precision, wanted.lora, wanted.checkpointing) == ("bf16-mixed", None, None)
    wanted, _ = read(tmp_path, text + "pure_bf16: true\n")
    assert wanted.precision == "bf16"


def test_trl_with_accelerate(tmp_path: Path) -> None:
    wanted, taken = read(tmp_path, TRL, ACCELERATE)
    assert given(wanted) == {
        "model": "org/model-7b",
        "sequence": 1024,
        "micro_batch": 8,
        "gpus": "8",
        "optimizer": "adamw_torch_fused",
        "precision": "bf16-mixed",
        "checkpointing": "none",
        "loss": "fused",
    }
    assert {one.file.rpartition("/")[2] for one in taken.settings} == {"0.yaml", "1.yaml"}


@pytest.mark.parametrize(
    ("more", "lora", "quantize"),
    [
        ("use_peft: true\nlora_r: 64\n", "r=64,targets=q_proj+v_proj", None),
        ("use_peft: true\nlora_target_modules: all-linear\n", "r=8", None),
        (
            "use_peft: true\nlora_target_modules: [k_proj, o_proj]\n",
            "r=8,targets=k_proj+o_proj",
            None,
        ),
        ("use_peft: true\nload_in_4bit: true\n", "r=8,targets=q_proj+v_proj", "nf4"),
        (
            "use_peft: true\nload_in_4bit: true\nuse_bnb_nested_quant: true\n"
            "torch_dtype: bfloat16\n",
            "r=8,targets=q_proj+v_proj,fp32",
            "nf4-double",
        ),
        ("use_peft: false\nlora_r: 64\n", None, None),
        ("load_in_4bit: true\n", None, None),
    ],
)
def test_adapters(tmp_path: Path, more: str, lora: str | None, quantize: str | None) -> None:
    wanted, _ = read(tmp_path, TRL + more)
    assert (wanted.lora.text if wanted.lora else None, wanted.quantize) == (lora, quantize)


def test_torchtitan(tmp_path: Path) -> None:
    wanted, taken = read(tmp_path, TORCHTITAN, suffix=".toml")
    assert given(wanted) == {
        "sequence": 8192,
        "micro_batch": 2,
        "optimizer": "adamw",
        "checkpointing": "selective:op",
    }
    assert [(one.name, one.value) for one in taken.beyond] == [
        ("parallelism.tensor_parallel_degree", "8")
    ]


def test_deepspeed(tmp_path: Path) -> None:
    wanted, taken = read(tmp_path, DEEPSPEED, suffix=".json")
    assert given(wanted) == {"micro_batch": 4, "precision": "fp16-mixed", "engine": "deepspeed"}
    assert taken.beyond == ()
    assert taken.zero is not None
    assert taken.zero.strategy == "zero-3-offload"


def test_the_command_line_comes_first(tmp_path: Path) -> None:
    wanted, taken = read(
        tmp_path, AXOLOTL, sequence=512, checkpointing="none", epochs=1.0, global_batch=4, gpus="2"
    )
    assert (wanted.sequence, wanted.checkpointing, wanted.epochs) == (512, "none", 1.0)
    assert wanted.global_batch == 4
    assert not {"--sequence", "--checkpointing", "--epochs"} & {one.name for one in taken.settings}


@pytest.mark.parametrize(
    ("options", "more"),
    [({"params": "7B"}, {}), ({"workload": "a:b"}, {"sequence": 4096, "checkpointing": "every"})],
)
def test_another_description_of_the_model_replaces_its_own(
    tmp_path: Path, options: dict[str, str], more: dict[str, object]
) -> None:
    wanted, _ = read(tmp_path, AXOLOTL, **options)
    assert given(wanted) == {
        **options,
        **more,
        "micro_batch": 2,
        "epochs": 3.0,
        "optimizer": "adamw_bnb_8bit",
        "precision": "bf16",
    }


@pytest.mark.parametrize(
    "text",
    [
        "micro_batch_size: auto\ntrain_micro_batch_size_per_gpu: auto\nnum_processes: 4\n",
        "num_processes: 4\noptim: my_own_optimizer\nnum_epochs: many\nattn_implementation: new\n",
        "num_processes: 4\nbf16: false\nfp16: false\ngradient_accumulation_steps: 1\n",
    ],
)
def test_what_decides_nothing_is_left_open(tmp_path: Path, text: str) -> None:
    wanted, _ = read(tmp_path, text)
    assert given(wanted) == {"gpus": "4"}


@pytest.mark.parametrize(
    ("text", "suffix", "words"),
    [
        ("lr: 0.1\n", ".yaml", "no key of a plan"),
        ("a: [1\n", ".yaml", "no YAML"),
        ("a = [1\n", ".toml", "no TOML"),
        ("", ".yaml", "no key of a plan"),
    ],
)
def test_files_that_cannot_be_taken(tmp_path: Path, text: str, suffix: str, words: str) -> None:
    with pytest.raises(DoctorError, match=words):
        read(tmp_path, text, suffix=suffix)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match="No such file"):
        config_files.completed(PlanRequest(configs=[tmp_path / "none.yaml"]))


PREFERENCES = AXOLOTL.replace("sample_packing: true\n", "")


@pytest.mark.parametrize(
    ("more", "method", "share", "beyond"),
    [
        ("rl: dpo\nrl_beta: 0.1\n", "dpo", None, []),
        ("stage: dpo\n", "dpo", None, []),
        ("rl: kto\n", None, None, ["rl"]),
        ("rl: grpo\n", "grpo:beta=0", None, []),
        ("rl: grpo\ntrl:\n  beta: 0.0\n", "grpo:beta=0", None, []),
        ("rl: grpo\ntrl:\n  beta: 0.04\n  use_vllm: true\n", "grpo", None, ["trl.use_vllm"]),
        (
            "rl: grpo\ntrl:\n  use_vllm: true\n  vllm_mode: colocate\n"
            "  vllm_gpu_memory_utilization: 0.15\n",
            "grpo:beta=0",
            0.15,
            [],
        ),
        ("rl: grpo\nuse_vllm: true\nvllm_mode: colocate\n", "grpo:beta=0", 0.3, []),
        ("rl: grpo\nuse_vllm: true\nvllm_mode: server\n", "grpo:beta=0", 0.0, []),
        ("use_vllm: true\nvllm_mode: server\n", None, None, ["use_vllm"]),
    ],
)
def test_preferences_and_rewards(
    tmp_path: Path, more: str, method: str | None, share: float | None, beyond: list[str]
) -> None:
    wanted, taken = read(tmp_path, PREFERENCES + more)
    assert (wanted.method.text if wanted.method else None, wanted.vllm_share) == (method, share)
    assert [one.name for one in taken.beyond] == beyond


def test_a_model_in_numbers_has_no_method(tmp_path: Path) -> None:
    wanted, _ = read(tmp_path, PREFERENCES + "rl: dpo\n", params="7B")
    assert wanted.method is None


def test_compilation_and_float8_are_not_in_the_plan(tmp_path: Path) -> None:
    file = tmp_path / "llama.toml"
    file.write_text(
        "[training]\nlocal_batch_size = 1\n[compile]\nenable = true\n"
        '[model]\nconverters = ["float8"]\n'
    )
    _, taken = config_files.completed(PlanRequest(configs=[file], params="1B"))
    assert {one.name for one in taken.beyond} == {"compile.enable", "model.converters"}


@pytest.mark.parametrize("text", COMPILED)
def test_a_file_that_compiles(tmp_path: Path, text: str) -> None:
    wanted, taken = read(tmp_path, TRL + text)
    assert wanted.compile
    assert ("--compile", "") in {(one.name, one.value) for one in taken.settings}
    assert taken.beyond == ()


@pytest.mark.parametrize(
    ("parts", "loss"),
    [
        ("", "compiled"),
        ('components = ["model", "loss"]', "compiled"),
        ('components = ["model"]', None),
    ],
)
def test_a_table_of_torchtitan_that_compiles(tmp_path: Path, parts: str, loss: str | None) -> None:
    path = tmp_path / "train.toml"
    path.write_text(TORCHTITAN + f"[compile]\nenable = true\n{parts}\n")
    wanted, taken = config_files.completed(PlanRequest(configs=[path]))
    assert (wanted.compile, wanted.loss) == (True, loss)
    assert "compile.enable" not in {one.name for one in taken.beyond}


@pytest.mark.parametrize(
    "text", ["torch_compile: false", 'dynamo_config:\n  dynamo_backend: "NO"', "dynamo_backend: no"]
)
def test_a_file_that_does_not_compile(tmp_path: Path, text: str) -> None:
    assert not read(tmp_path, TRL + text)[0].compile


def test_a_plan_in_numbers_compiles_nothing(tmp_path: Path) -> None:
    wanted, taken = read(tmp_path, TRL + "torch_compile: true", params="7B")
    assert not wanted.compile
    assert [one.name for one in taken.beyond] == ["torch_compile"]
