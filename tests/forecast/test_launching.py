"""The files that are written, started for real: on CPU ranks, with a small model of the kind."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddoctor.evidence.plan import Plan, Strategy
from ddoctor.forecast.devices import PlannedGpu
from ddoctor.forecast.launch_files import ARGUMENTS, SCRIPT, write
from ddoctor.forecast.model.blueprint import from_config
from ddoctor.forecast.options import PlanRequest
from ddoctor.forecast.planning import plan
from tests.conftest import free_port
from tests.forecast.small_models import written
from tests.training.conftest import LIMIT_SECONDS, Training

TRAINING = Path(__file__).parent / "launched.py"
BLOCK = "FSDPLlamaDecoderLayer"
# As where the environment of these tests is active.
SHELL = ("env", f"PATH={Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "sh")


def planned(folder: Path, strategy: Strategy, gpus: int = 2) -> Plan:
    """As if this strategy had been recommended."""
    model = from_config(written(folder)).read("bf16-mixed", "adamw")
    whole = plan(
        model, PlannedGpu(name="T9", memory=80 * 10**9), (gpus,), PlanRequest(micro_batch=2)
    )
    place = [row.strategy for row in whole.rows].index(strategy)
    return msgspec.structs.replace(whole, chosen=place)


def script(folder: Path, wanted: Plan) -> Path:
    """What is written for it, to be started."""
    write(folder / "launch", wanted)
    return folder / "launch" / SCRIPT


def launched(folder: Path, script: Path, *hosts: Sequence[str]) -> list[Mapping[str, Any]]:
    """What each rank tells; ``hosts``: of each, what is said to its launcher."""
    told = folder / "told"
    told.mkdir()
    training = Training(folder, TRAINING, ())
    words = (str(TRAINING), str(folder), str(told))
    with ExitStack() as stack:
        running = [
            stack.enter_context(training.started(*SHELL, str(script), *options, *words))
            for options in hosts
        ]
        for process in running:
            _, stderr = process.communicate(timeout=LIMIT_SECONDS)
            assert process.returncode == 0, stderr
    return [json.loads(path.read_text()) for path in sorted(told.iterdir())]


def port() -> tuple[str, str]:
    """For accelerate."""
    return "--main_process_port", str(free_port())


def trained_alike(ranks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether they began with the weights of the first, and learned the same from the same."""
    first, second = ranks[0]["losses"]
    return second < first and all(one["losses"] == [first, second] for one in ranks)


@pytest.mark.ward
def test_ddp(tmp_path: Path) -> None:
    ranks = launched(tmp_path, script(tmp_path, planned(tmp_path, "ddp")), port())
    assert [one["ranks"] for one in ranks] == [2, 2]
    assert [one["model"] for one in ranks] == ["DistributedDataParallel"] * 2
    assert {one["precision"] for one in ranks} == {"bf16"}
    assert trained_alike(ranks)


@pytest.mark.ward
def test_fsdp(tmp_path: Path) -> None:
    ranks = launched(tmp_path, script(tmp_path, planned(tmp_path, "fsdp")), port())
    assert [one["ranks"] for one in ranks] == [2, 2]
    assert [one["units"].count(BLOCK) for one in ranks] == [4, 4]
    assert BLOCK not in ranks[0]["gathered after forward"]
    assert [one["offloaded"] for one in ranks] == [False, False]
    assert {one["precision"] for one in ranks} == {"bf16"}
    assert trained_alike(ranks)


@pytest.mark.ward
def test_fsdp_that_keeps_what_it_gathered(tmp_path: Path) -> None:
    ranks = launched(tmp_path, script(tmp_path, planned(tmp_path, "fsdp-gradients")), port())
    assert all(BLOCK in one["gathered after forward"] for one in ranks)
    assert trained_alike(ranks)


@pytest.mark.ward
def test_fsdp_kept_on_the_cpu(tmp_path: Path) -> None:
    wanted = planned(tmp_path, "fsdp")
    row = msgspec.structs.replace(wanted.rows[0], strategy="fsdp-offload")
    wanted = msgspec.structs.replace(wanted, rows=(row,), chosen=0)
    ranks = launched(tmp_path, script(tmp_path, wanted), port())
    assert [one["offloaded"] for one in ranks] == [True, True]
    assert [one["units"].count(BLOCK) for one in ranks] == [4, 4]
    assert trained_alike(ranks)


@pytest.mark.ward
def test_a_model_whose_blocks_nobody_named(tmp_path: Path) -> None:
    wanted = msgspec.structs.replace(planned(tmp_path, "fsdp"), blocks=())
    ranks = launched(tmp_path, script(tmp_path, wanted), port())
    assert [one["units"].count(BLOCK) for one in ranks] == [4, 4]
    assert trained_alike(ranks)


@pytest.mark.ward
def test_one_gpu(tmp_path: Path) -> None:
    (rank,) = launched(tmp_path, script(tmp_path, planned(tmp_path, "one-gpu", 1)), ())
    assert (rank["ranks"], rank["model"]) == (1, "LlamaForCausalLM")
    assert trained_alike([rank])


@pytest.mark.ward
def test_fsdp_within_hosts(tmp_path: Path) -> None:
    """Two hosts of two, in place of those of eight."""
    started = script(tmp_path, planned(tmp_path, "fsdp-hybrid", 16))
    fewer = ("--num_processes", "4", "--parallelism_config_dp_shard_size", "2")
    met = ("--main_process_ip", "127.0.0.1", *port(), *fewer)
    ranks = launched(tmp_path, started, *(("--machine_rank", str(n), *met) for n in range(2)))
    assert [one["ranks"] for one in ranks] == [4] * 4
    assert {tuple(mesh) for one in ranks for mesh in one["meshes"]} == {(2, 2)}
    assert trained_alike(ranks)


@pytest.mark.ward
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_torchrun_does_the_same(tmp_path: Path, strategy: Strategy) -> None:
    started = script(tmp_path, planned(tmp_path, strategy))
    _, other = started.read_text().split("with torchrun;")
    lines = other.splitlines()[1:]
    assert all(line.startswith("# ") for line in lines)
    started.write_text("\n".join(line.removeprefix("# ") for line in lines))
    ranks = launched(tmp_path, started, ("--master-port", str(free_port())))
    assert [one["ranks"] for one in ranks] == [2, 2]
    assert [one["units"].count(BLOCK) for one in ranks] == (
        [4, 4] if strategy == "fsdp" else [0, 0]
    )
    assert {one["precision"] for one in ranks} == {"bf16"}
    assert trained_alike(ranks)


TRAINER = """
    import json, sys
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

    _, config, arguments, told = sys.argv
    with open(arguments) as file:
        settings = json.load(file)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config))
    rows = [{"input_ids": torch.arange(64), "labels": torch.arange(64)}] * 64
    trainer = Trainer(
        model,
        TrainingArguments(told, max_steps=2, use_cpu=True, report_to="none", **settings),
        train_dataset=rows,
    )
    trainer.train()
    used = trainer.args
    print(json.dumps({
        "batch": used.train_batch_size,
        "turns": used.gradient_accumulation_steps,
        "ranks": used.world_size,
        "epoch": trainer.state.epoch,
    }))
"""


@pytest.mark.ward
def test_a_trainer_with_the_arguments(tmp_path: Path) -> None:
    """Two steps of 2 ranks × 2 samples × 4 turns are half of 64 samples."""
    wanted = planned(tmp_path, "ddp")
    row = msgspec.structs.replace(wanted.rows[0], accumulation=4)
    started = script(tmp_path, msgspec.structs.replace(wanted, rows=(row,), chosen=0))
    training = Training(tmp_path, TRAINER, ())
    files = (str(training.script), str(tmp_path), str(started.with_name(ARGUMENTS)), str(tmp_path))
    with training.started(*SHELL, str(started), *port(), *files) as process:
        stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, stderr
    told = [json.loads(line) for line in stdout.splitlines() if line.startswith('{"batch"')]
    assert told == [{"batch": 2, "turns": 4, "ranks": 2, "epoch": 0.5}] * 2
