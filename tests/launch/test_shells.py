"""Mistakes in the shell scripts of launches."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Severity
from tests.launch.files import told
from tests.launch.reviewed import causes

SLURM = """
    #!/bin/bash
    #SBATCH --nodes=2
    #SBATCH --ntasks-per-node=1
    #SBATCH --gpus-per-node=4
    export {variable}=bond0
    MASTER_ADDR={address}
    srun torchrun --nnodes=2 --nproc-per-node=4 {more} train.py --lr 1e-3
"""
MEETS = "--rdzv-backend=c10d --rdzv-id=1 --rdzv-endpoint=$MASTER_ADDR:29500"
FIRST = "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
BY_NUMBER = "--node-rank=$SLURM_NODEID --master-addr=$MASTER_ADDR --master-port=29500"
ARMS = """
    torchrun {first} --nproc-per-node 2 train.py --lr 1e-3 > a.log 2>&1 {ends}
    torchrun {second} --nproc-per-node 2 train.py --lr 1e-4 > b.log 2>&1 &
    wait
"""
TRAINER = """
    from transformers import HfArgumentParser, Trainer, TrainingArguments
    arguments = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    Trainer(model=model, args=arguments[0]).train()
"""
OWN_OPTIONS = """
    from accelerate import Accelerator
    from options import parser
    args = parser().parse_args()
    accelerator = Accelerator(mixed_precision=args.mixed_precision)
"""
OPTIONS = """
    import argparse
    def parser():
        found = argparse.ArgumentParser()
        found.add_argument("--mixed_precision", default="{}")
        return found
"""


@pytest.mark.parametrize(
    ("cause", "variable", "address", "more"),
    [
        ("hostname-resolution", "NCCL_SOCKET_IFNAME", "$SLURM_JOB_NODELIST", MEETS),
        ("launch-config-invalid", "NCCL_SOCKET_IFNAME", FIRST, BY_NUMBER),
        ("environment-variable-invalid", "NCCL_SOCKET_IFNAM", FIRST, MEETS),
        ("environment-variable-invalid", "NCCL_SOCKET_INTERFACE", FIRST, MEETS),
    ],
)
def test_a_batch_script(tmp_path: Path, cause: str, variable: str, address: str, more: str) -> None:
    (tmp_path / "jobs").mkdir()
    for name, text in (
        ("sick", SLURM.format(variable=variable, address=address, more=more)),
        ("sound", SLURM.format(variable="NCCL_SOCKET_IFNAME", address=FIRST, more=MEETS)),
    ):
        lines = [line.removeprefix("    ") for line in text.strip("\n").splitlines()]
        (tmp_path / "jobs" / f"{name}.sh").write_text("\n".join(lines))
    assert cause in {one.cause for one in told(tmp_path, "sbatch jobs/sick.sh")}
    assert cause not in {one.cause for one in told(tmp_path, "sbatch jobs/sound.sh")}


@pytest.mark.parametrize(
    ("first", "second", "ends", "severity"),
    [
        ("--master-port 29511", "--master-port 29511", "&", Severity.ERROR),
        ("--master-port 29511", "--master-port 29512", "&", None),
        ("--master-port 29511", "--master-port 29511", "", None),
        ("--master-port 29511", "--master-port 29511", "& wait", None),
        ("", "", "&", Severity.NOTE),
        ("--standalone", "--standalone", "&", None),
    ],
)
def test_launches_at_the_same_time(
    tmp_path: Path, first: str, second: str, ends: str, severity: Severity | None
) -> None:
    script = ARMS.format(first=first, second=second, ends=ends)
    found = {one.cause: one.severity for one in told(tmp_path, "bash run.sh", run_sh=script)}
    assert found.get("master-port-in-use") is severity


@pytest.mark.parametrize(
    ("config", "given", "wrong"),
    [
        ('{"fp16": {"enabled": true}}', "--bf16", True),
        ('{"bf16": {"enabled": true}}', "--bf16", False),
        ('{"bf16": {"enabled": "auto"}}', "--bf16", False),
        ('{"bf16": {"enabled": true}}', "", False),
        ('{"gradient_accumulation_steps": 4}', "--gradient_accumulation_steps 8", True),
        ('{"gradient_accumulation_steps": 4}', "--gradient_accumulation_steps 4", False),
        ('{"optimizer": {"params": {"lr": 1e-4}}}', "--learning_rate 0.0001", False),
        ('{"optimizer": {"params": {"lr": 1e-4}}}', "--learning_rate 3e-4", True),
    ],
)
def test_a_file_of_deepspeed_and_the_trainer(
    tmp_path: Path, config: str, given: str, wrong: bool
) -> None:
    command = f"torchrun --standalone --nproc-per-node 4 train.py --deepspeed ds.json {given}"
    found = causes(tmp_path, command, TRAINER, ds_json=config)
    assert ("launch-config-invalid" in found) is wrong


@pytest.mark.parametrize(("default", "wrong"), [("no", True), ("bf16", False)])
def test_options_in_another_module(tmp_path: Path, default: str, wrong: bool) -> None:
    command = "accelerate launch --num_processes 2 --mixed_precision bf16 train.py"
    found = causes(tmp_path, command, OWN_OPTIONS, options_py=OPTIONS.format(default))
    assert ("mixed-precision-overridden" in found) is wrong
