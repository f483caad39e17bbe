"""What is written for each strategy, as accelerate and transformers read it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import transformers
import yaml
from accelerate.commands.config.config_args import (  # type: ignore[import-untyped]
    load_config_from_file,
)
from accelerate.utils import (  # type: ignore[import-untyped]
    FullyShardedDataParallelPlugin,
)
from torch.distributed.fsdp import CPUOffloadPolicy
from transformers.training_args import OptimizerNames

from ddoctor import engine
from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import Plan, Strategy
from ddoctor.evidence.section import Evidence
from ddoctor.forecast.launch_files import ACCELERATE, ARGUMENTS, SCRIPT, texts, write
from ddoctor.launch.review import review
from tests.launch.files import machine
from tests.plans import planned


def recommended(strategy: Strategy, gpus: int = 2, **fields: Any) -> Plan:
    """As if it had been."""
    # Where anything else fits, nothing is kept on the CPU.
    whole = planned(24 if strategy == "fsdp-offload" else 80, (gpus,))
    place = [row.strategy for row in whole.rows].index(strategy)
    return msgspec.structs.replace(whole, chosen=place, **fields)


def settings(plan: Plan) -> dict[str, Any]:
    """Of accelerate."""
    found = yaml.safe_load(texts(plan)[ACCELERATE])
    assert isinstance(found, dict)
    return found


def arguments(plan: Plan) -> dict[str, Any]:
    found = json.loads(texts(plan)[ARGUMENTS])
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("strategy", "gpus", "kind"),
    [("one-gpu", 1, "NO"), ("ddp", 8, "MULTI_GPU"), ("fsdp", 8, "FSDP")],
)
def test_the_kind_and_the_number(strategy: Strategy, gpus: int, kind: str) -> None:
    found = settings(recommended(strategy, gpus))
    assert (found["distributed_type"], found["num_processes"]) == (kind, gpus)
    assert found["num_machines"] == 1
    assert ("fsdp_config" in found) == (kind == "FSDP")
    assert "parallelism_config" not in found


def test_each_block_is_a_unit() -> None:
    blocks = ("BartEncoderLayer", "BartDecoderLayer")
    assert settings(recommended("fsdp", blocks=blocks))["fsdp_config"] == {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": True,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": "BartEncoderLayer,BartDecoderLayer",
    }


def test_blocks_that_nobody_named_are_left_to_the_model() -> None:
    plan = recommended("fsdp")
    assert "fsdp_transformer_layer_cls_to_wrap" not in settings(plan)["fsdp_config"]
    assert "# fsdp_transformer_layer_cls_to_wrap: Block" in texts(plan)[ACCELERATE]
    assert "CLS_TO_WRAP" not in texts(plan)[SCRIPT]


def test_what_is_gathered_stays_where_only_gradients_are_sharded() -> None:
    found = settings(recommended("fsdp-gradients"))
    assert found["fsdp_config"]["fsdp_reshard_after_forward"] is False


def test_what_is_kept_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = recommended("fsdp-offload")
    assert settings(plan)["fsdp_config"]["fsdp_offload_params"] is True
    assert "fsdp_offload_params" not in settings(recommended("fsdp"))["fsdp_config"]
    # As accelerate reads what `accelerate launch`, and the script for torchrun, exports.
    exported = re.findall(r"^# export (.*)$", texts(plan)[SCRIPT], re.MULTILINE)
    for name, value in (one.split("=") for line in exported for one in line.split()):
        monkeypatch.setenv(name, value)
    assert isinstance(FullyShardedDataParallelPlugin().cpu_offload, CPUOffloadPolicy)


def test_hosts_of_eight() -> None:
    plan = recommended("fsdp-hybrid", 16)
    found = settings(plan)
    assert (found["num_machines"], found["num_processes"]) == (2, 16)
    assert found["parallelism_config"] == {
        "parallelism_config_dp_replicate_size": 2,
        "parallelism_config_dp_shard_size": 8,
    }
    assert "--machine_rank 0 --main_process_ip HOST-0" in texts(plan)[SCRIPT]
    assert "torchrun --nnodes 2" in texts(plan)[SCRIPT]
    assert "--nproc-per-node 8" in texts(plan)[SCRIPT]


@pytest.mark.parametrize(
    ("precision", "mixed", "flags"),
    [
        ("bf16-mixed", "bf16", (True, False)),
        ("fp16-mixed", "fp16", (False, True)),
        ("fp32", "no", (False, False)),
        ("bf16", "no", (False, False)),
    ],
)
def test_the_precision(precision: str, mixed: str, flags: tuple[bool, bool]) -> None:
    plan = recommended("ddp", precision=precision)
    assert settings(plan)["mixed_precision"] == mixed
    assert (arguments(plan)["bf16"], arguments(plan)["fp16"]) == flags
    assert ("dtype=torch.bfloat16" in texts(plan)[ACCELERATE]) == (precision == "bf16")


@pytest.mark.parametrize(
    ("precision", "optimizer", "name"),
    [
        ("fp32", "adamw", OptimizerNames.ADAMW_TORCH),
        ("bf16-mixed", "adamw-fp32", OptimizerNames.ADAMW_TORCH),
        ("bf16", "adamw-fp32", None),
        ("bf16", "adamw-8bit", OptimizerNames.ADAMW_BNB),
        ("fp32", "sgd", OptimizerNames.SGD),
        ("fp32", "adafactor", OptimizerNames.ADAFACTOR),
    ],
)
def test_the_optimizer(precision: str, optimizer: str, name: OptimizerNames | None) -> None:
    found = arguments(recommended("ddp", precision=precision, optimizer=optimizer))
    assert found.get("optim") == (name.value if name is not None else None)


def test_the_micro_batches_make_the_global_batch() -> None:
    plan = recommended("ddp", micro_batch=4)
    row = msgspec.structs.replace(plan.rows[0], accumulation=8)
    plan = msgspec.structs.replace(plan, rows=(row,), chosen=0)
    found = arguments(plan)
    assert found["per_device_train_batch_size"] * found["gradient_accumulation_steps"] * 2 == 64
    assert (
        "# 4 samples per GPU and micro-batch, 8 accumulation steps: 64 in total"
        in texts(plan)[ACCELERATE]
    )


def test_a_micro_batch_that_nobody_told_is_left_out() -> None:
    assert "per_device_train_batch_size" not in arguments(recommended("ddp"))


@pytest.mark.parametrize(
    ("strategy", "gpus"),
    [
        ("one-gpu", 1),
        ("ddp", 2),
        ("fsdp-gradients", 8),
        ("fsdp", 8),
        ("fsdp-hybrid", 16),
        ("fsdp-offload", 1),
        ("fsdp-offload", 2),
    ],
)
def test_accelerate_and_transformers_know_every_name(
    tmp_path: Path, strategy: Strategy, gpus: int
) -> None:
    plan = recommended(strategy, gpus, micro_batch=1)
    path = tmp_path / ACCELERATE
    path.write_text(texts(plan)[ACCELERATE])
    assert load_config_from_file(str(path)).num_processes == gpus
    known = {one.name for one in dataclasses.fields(transformers.TrainingArguments)}
    assert arguments(plan).keys() <= known


def test_each_file_says_what_it_is_of() -> None:
    found = texts(recommended("ddp", 8))
    for name in (ACCELERATE, SCRIPT):
        assert "# DDP on 8 GPUs, from `ddoctor plan`:" in found[name]
        assert "# 4.4B parameters, bf16, adamw-fp32, on T9" in found[name]


def test_gpus_that_fill_no_hosts() -> None:
    with pytest.raises(
        DoctorError, match="12 GPUs, which do not fill whole hosts of 8: pass --gpus 8"
    ):
        texts(recommended("fsdp", 12))


def test_nothing_fits() -> None:
    with pytest.raises(DoctorError, match="nothing fits"):
        texts(planned(8))


def test_no_name_of_a_bundle_is_executed() -> None:
    """A run's bundle may come from others: `plan --measured BUNDLE --write FOLDER`."""
    name = "Net\ntouch /tmp/x\r\x85#\u2028\x1b[31m"
    plan = recommended("fsdp", model=name, device=name, optimizer=name, blocks=(name, "$(id)"))
    for text in texts(plan).values():
        assert not re.search(r"^touch|[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028]", text, re.MULTILINE)
        assert "$(id)" not in text
    commands = [one for one in texts(plan)[SCRIPT].splitlines() if one and not one.startswith("#")]
    assert commands == [f'accelerate launch --config_file "$(dirname "$0")/{ACCELERATE}" "$@"']
    assert settings(plan)["num_processes"] == 2


TRAIN = """
from transformers import HfArgumentParser, Trainer, TrainingArguments

(arguments,) = HfArgumentParser(TrainingArguments).parse_json_file("arguments.json")
Trainer(model=model, args=arguments, train_dataset=data).train()
"""


@pytest.mark.parametrize(
    ("strategy", "gpus"),
    [("ddp", 2), ("ddp", 16), ("fsdp-gradients", 8), ("fsdp", 8), ("fsdp-hybrid", 16)],
)
@pytest.mark.parametrize(
    "command",
    [
        "accelerate launch --config_file accelerate.yaml train.py arguments.json",
        "bash launch.sh train.py arguments.json",
    ],
)
def test_a_review_of_them_says_nothing(
    tmp_path: Path, strategy: Strategy, gpus: int, command: str
) -> None:
    write(tmp_path, recommended(strategy, gpus, micro_batch=1))
    (tmp_path / "train.py").write_text(TRAIN)
    if gpus > 8:
        # launch.sh says that each host needs these.
        at = "--machine_rank 0 --main_process_ip node1"
        command = command.replace("train.py", f"{at} train.py")
    evidence = Evidence([*review(command.split(), tmp_path), machine(8)])
    report = engine.examine(evidence, "doctor")
    assert (report.findings, report.crashed) == ((), ())


def test_compiled_blocks_are_compiled_by_accelerate(tmp_path: Path) -> None:
    plan = recommended("ddp")
    assert "dynamo_config" not in settings(plan)
    plan = msgspec.structs.replace(plan, without_compile=plan.rows[0])
    write(tmp_path, plan)
    read = load_config_from_file(str(tmp_path / ACCELERATE)).dynamo_config
    assert read == {"dynamo_backend": "INDUCTOR", "dynamo_use_regional_compilation": True}
    assert "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=true" in texts(plan)[SCRIPT]
