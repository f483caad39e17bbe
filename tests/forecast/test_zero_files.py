"""What a plan takes of DeepSpeed from the configuration of a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddoctor.evidence.plan import Strategy
from ddoctor.forecast import config_files
from ddoctor.forecast.config_files import Taken
from ddoctor.forecast.options import PlanRequest
from ddoctor.forecast.zero import USUAL, Zero


def read(folder: Path, *texts: str | dict[str, Any], **options: Any) -> tuple[PlanRequest, Taken]:
    paths = [folder / f"{number}.yaml" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text if isinstance(text, str) else json.dumps(text))
    return config_files.completed(PlanRequest(configs=paths, **options))


def zero(taken: Taken) -> Zero:
    assert taken.zero is not None
    return taken.zero


def of_deepspeed(stage: int, optimizer: str = "none", parameters: str = "none") -> dict[str, Any]:
    return {
        "zero_optimization": {
            "stage": stage,
            "offload_optimizer": {"device": optimizer},
            "offload_param": {"device": parameters},
        }
    }


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        (of_deepspeed(1), "zero-1"),
        (of_deepspeed(2), "zero-2"),
        (of_deepspeed(2, "cpu"), "zero-2-offload"),
        (of_deepspeed(3), "zero-3"),
        (of_deepspeed(3, "cpu", "cpu"), "zero-3-cpu"),
        (of_deepspeed(3, "nvme", "nvme"), "zero-3-nvme"),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n"
            "  offload_optimizer_device: cpu\n  offload_param_device: none\n",
            "zero-3-offload",
        ),
    ],
)
def test_the_stage(tmp_path: Path, text: str | dict[str, Any], strategy: Strategy) -> None:
    wanted, taken = read(tmp_path, text)
    assert wanted.engine == "deepspeed"
    assert zero(taken).strategy == strategy
    assert taken.beyond == ()
    assert taken.settings[0].name == "--engine"


def test_the_accumulation_of_accelerate(tmp_path: Path) -> None:
    text = "deepspeed_config:\n  zero_stage: 2\n  gradient_accumulation_steps: 4\n"
    wanted, _ = read(tmp_path, text, micro_batch=2, gpus="8")
    assert wanted.global_batch == 64


def test_a_mix_that_no_row_has_is_told(tmp_path: Path) -> None:
    _, taken = read(tmp_path, of_deepspeed(1, "cpu"))
    assert zero(taken).strategy == "zero-1"
    assert [one.value for one in taken.beyond] == ["cpu"]


def test_the_buffers(tmp_path: Path) -> None:
    sizes = {"reduce_bucket_size": 2e8, "overlap_comm": False, "stage3_max_live_parameters": "auto"}
    _, taken = read(tmp_path, {"zero_optimization": {"stage": 3, **sizes}})
    found = zero(taken).buffers
    assert (found.reduce_bucket, found.overlap) == (200_000_000, False)
    # Only accelerate knows what "auto" becomes.
    assert found.max_live == USUAL.max_live
    assert [one.name for one in taken.beyond] == ["zero_optimization.stage3_max_live_parameters"]


def test_files_that_name_deepspeeds(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(of_deepspeed(2)))
    for text in (
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n",
        "base_model: org/model\ndeepspeed: ds.json\n",
    ):
        wanted, taken = read(tmp_path, text)
        assert (wanted.engine, zero(taken).strategy) == ("deepspeed", "zero-2")


def test_a_file_that_is_elsewhere_implies_deepspeed(tmp_path: Path) -> None:
    wanted, taken = read(tmp_path, "base_model: org/model\ndeepspeed: missing.json\n")
    assert (wanted.engine, zero(taken).strategy) == ("deepspeed", None)


@pytest.mark.parametrize(
    "text",
    [
        "num_processes: 4\ndistributed_type: FSDP\n",
        json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 0}}),
    ],
)
def test_other_files(tmp_path: Path, text: str) -> None:
    wanted, taken = read(tmp_path, text, "num_processes: 2\n")
    assert (wanted.engine, taken.zero) == (None, None)


def test_the_command_line_comes_first(tmp_path: Path) -> None:
    files = ("num_processes: 2\n", {**of_deepspeed(3), "train_micro_batch_size_per_gpu": 4})
    wanted, taken = read(tmp_path, *files, engine="fsdp")
    assert (wanted.engine, wanted.micro_batch, taken.zero) == ("fsdp", 4, None)
