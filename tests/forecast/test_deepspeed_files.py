"""What is written for each strategy of ZeRO, as DeepSpeed, accelerate and the review read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from accelerate.commands.config.config_args import (  # type: ignore[import-untyped]
    load_config_from_file,
)

from ddoctor import engine
from ddoctor.evidence.plan import OFFLOADED, Plan, Strategy
from ddoctor.evidence.section import Evidence
from ddoctor.forecast.closed_form import Model
from ddoctor.forecast.deepspeed_files import NAME
from ddoctor.forecast.devices import PlannedGpu
from ddoctor.forecast.launch_files import ACCELERATE, SCRIPT, texts, write
from ddoctor.forecast.options import PlanRequest
from ddoctor.forecast.planning import plan
from ddoctor.forecast.zero import Zero
from ddoctor.launch.review import review
from tests.forecast.test_launch_files import TRAIN
from tests.launch.files import machine

GB = 10**9
ALL: tuple[Strategy, ...] = (
    *("zero-1", "zero-2", "zero-3"),
    *("zero-2-offload", "zero-3-offload", "zero-3-cpu", "zero-3-nvme"),
)
# deepspeed/runtime/zero/config.py and offload_config.py: other keys are refused.
OF_ZERO = {
    *("stage", "overlap_comm", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size"),
    *("allgather_bucket_size", "offload_optimizer", "offload_param", "sub_group_size"),
    *("stage3_prefetch_bucket_size", "stage3_max_live_parameters"),
    *("stage3_param_persistence_threshold", "stage3_gather_16bit_weights_on_model_save"),
}
OF_OFFLOAD = {"device", "nvme_path", "buffer_size", "pin_memory"}


def planned(strategy: Strategy, gpus: int = 8, **fields: Any) -> Plan:
    model = Model(parameters=4.4e9, trainable=4.4e9, precision="bf16-mixed", optimizer="adamw")
    work = PlanRequest(micro_batch=2, global_batch=64)
    device = PlannedGpu(name="T9", memory=80 * GB)
    whole = plan(model, device, (gpus,), work, zero=Zero(strategy=strategy))
    place = [row.strategy for row in whole.rows].index(strategy)
    return msgspec.structs.replace(whole, chosen=place, **fields)


def deepspeed(found: Plan) -> dict[str, Any]:
    read = json.loads(texts(found)[NAME])
    assert isinstance(read, dict)
    return read


@pytest.mark.parametrize(
    ("strategy", "stage", "optimizer", "parameters"),
    [
        ("zero-1", 1, None, None),
        ("zero-2", 2, None, None),
        ("zero-3", 3, None, None),
        ("zero-2-offload", 2, "cpu", None),
        ("zero-3-offload", 3, "cpu", None),
        ("zero-3-cpu", 3, "cpu", "cpu"),
        ("zero-3-nvme", 3, "nvme", "nvme"),
    ],
)
def test_the_stage_and_what_it_offloads(
    strategy: Strategy, stage: int, optimizer: str | None, parameters: str | None
) -> None:
    zero = deepspeed(planned(strategy))["zero_optimization"]
    assert zero["stage"] == stage
    assert zero.get("offload_optimizer", {}).get("device") == optimizer
    assert zero.get("offload_param", {}).get("device") == parameters
    assert zero.keys() <= OF_ZERO
    for part in ("offload_optimizer", "offload_param"):
        assert zero.get(part, {}).keys() <= OF_OFFLOAD
        assert ("nvme_path" in zero.get(part, {})) == (zero.get(part, {}).get("device") == "nvme")


def test_the_batch_and_the_precision() -> None:
    found = deepspeed(planned("zero-2"))
    assert found["train_micro_batch_size_per_gpu"] == 2
    assert found["gradient_accumulation_steps"] == 4
    assert (found["bf16"]["enabled"], found["fp16"]["enabled"]) == (True, False)
    other = deepspeed(planned("zero-2", precision="fp16-mixed", micro_batch=None))
    assert other["train_micro_batch_size_per_gpu"] == "auto"
    assert (other["bf16"]["enabled"], other["fp16"]["enabled"]) == (False, True)
    whole = deepspeed(planned("zero-2", precision="fp32"))
    assert (whole["bf16"]["enabled"], whole["fp16"]["enabled"]) == (False, False)


def test_the_buffers_are_those_of_the_plan() -> None:
    found = planned("zero-3")
    assert found.zero is not None
    small = msgspec.structs.replace(found.zero, reduce_bucket=7, prefetch_bucket=5, overlap=False)
    zero = deepspeed(msgspec.structs.replace(found, zero=small))["zero_optimization"]
    assert (zero["reduce_bucket_size"], zero["stage3_prefetch_bucket_size"]) == (7, 5)
    assert zero["overlap_comm"] is False


@pytest.mark.parametrize(("gpus", "launcher"), [(8, None), (16, "standard")])
def test_accelerate_reads_its_file(tmp_path: Path, gpus: int, launcher: str | None) -> None:
    write(tmp_path, planned("zero-3", gpus))
    found = load_config_from_file(str(tmp_path / ACCELERATE))
    assert found.num_processes == gpus
    assert found.deepspeed_config["deepspeed_config_file"] == str(tmp_path / NAME)
    assert found.deepspeed_config["zero3_init_flag"] is True
    assert found.deepspeed_config.get("deepspeed_multinode_launcher") == launcher
    # accelerate refuses what both files say.
    assert "mixed_precision" not in yaml.safe_load((tmp_path / ACCELERATE).read_text())


def test_torchrun_exports_the_same() -> None:
    script = texts(planned("zero-2"), Path("my folder"))[SCRIPT]
    assert "# export ACCELERATE_USE_DEEPSPEED=true" in script
    assert "# export ACCELERATE_DEEPSPEED_CONFIG_FILE='my folder/deepspeed.json'" in script
    assert "FSDP" not in script


def test_nvme_needs_a_folder() -> None:
    assert "Set both nvme_path" in texts(planned("zero-3-nvme"))[ACCELERATE]
    assert "nvme_path" not in texts(planned("zero-3-cpu"))[ACCELERATE]


@pytest.mark.parametrize("strategy", ALL)
def test_a_review_of_them_notes_only_what_the_plan_says_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: Strategy
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("launch"), planned(strategy))
    (tmp_path / "train.py").write_text(TRAIN)
    line = "accelerate launch --config_file launch/accelerate.yaml"
    command = f"{line} train.py launch/arguments.json"
    evidence = Evidence([*review(command.split(), tmp_path), machine(8)])
    report = engine.examine(evidence, "doctor")
    # An optimizer on the CPU is slow, whoever wrote so.
    noted = ["cpu-offload-slow-optimizer"] if strategy in OFFLOADED else []
    assert ([one.cause for one in report.findings], report.crashed) == (noted, ())
