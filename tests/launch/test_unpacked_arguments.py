"""Arguments of a Trainer that a section of the user's file holds, and commands without Python."""

from __future__ import annotations

import shlex
from pathlib import Path
from textwrap import dedent

import pytest

from ddoctor.evidence.section import Evidence
from ddoctor.launch.review import review
from ddoctor.report.launch import starts
from tests.launch.files import machine
from tests.launch.reviewed import causes

SCRIPT = """
    import sys, yaml
    from transformers import Trainer, TrainingArguments

    settings = yaml.safe_load(open(sys.argv[1]))
    arguments = TrainingArguments({})
    Trainer(model=make(settings["model"]), args=arguments, train_dataset=data).train()
"""
OWN = """
    model: small
    training:
      output_dir: out
      per_device_train_batch_size: 4
      gradient_accumulation_steps: 8
      learning_rate: 3.0e-4
      deepspeed: zero.json
"""
ZERO = '{{"train_batch_size": {}, "zero_optimization": {{"stage": 2}}}}'


@pytest.mark.parametrize(
    ("given", "batch"),
    [
        ('**settings["training"]', "4 a rank (own.yaml:5) × 8 ranks × 8 micro-batches"),
        ("**settings.training", "4 a rank (own.yaml:5) × 8 ranks × 8 micro-batches"),
        ('"out"', "8 a rank (the default of TrainingArguments)"),
        # What another dictionary sets is not known, and neither is what it leaves.
        ("**other(settings)", ""),
    ],
)
def test_what_starts(tmp_path: Path, given: str, batch: str) -> None:
    (tmp_path / "own.yaml").write_text(dedent(OWN.replace("deepspeed: zero.json", "")))
    (tmp_path / "train.py").write_text(dedent(SCRIPT.format(given)))
    command = shlex.split("torchrun --nproc-per-node 8 train.py own.yaml")
    told = dict(starts(Evidence([*review(command, tmp_path), machine(8)])))
    assert batch in told.get("batch", "")
    assert ("default" in told.get("batch", "")) is ("default" in batch)


@pytest.mark.parametrize(
    ("whole", "ranks", "wrong"),
    [("256", 8, False), ("128", 8, True), ('"auto"', 8, False), ("128", 4, False)],
)
def test_the_whole_batch_in_a_file_of_deepspeed(
    tmp_path: Path, whole: str, ranks: int, wrong: bool
) -> None:
    source = SCRIPT.format('**settings["training"]')
    command = f"deepspeed --num_gpus {ranks} train.py own.yaml"
    found = causes(
        tmp_path, command, source, gpus=ranks, own_yaml=OWN, zero_json=ZERO.format(whole)
    )
    assert ("launch-config-invalid" in found) is wrong


WRAPPER = 'export CUDA_VISIBLE_DEVICES="$LOCAL_RANK"\nexec python "$@"\n'
SHUFFLES = """
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler
    import torch.distributed as dist
    dist.init_process_group("nccl")
    for epoch in range(9):
        for batch in DataLoader(data, sampler=DistributedSampler(data)):
            model(batch).sum().backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    ("runs", "read"), [("python -u train.py", True), ("./own.sh train.py", False)]
)
def test_a_program_in_the_place_of_the_script(tmp_path: Path, runs: str, read: bool) -> None:
    command = f"torchrun --nproc-per-node 2 --no-python {runs}"
    found = causes(tmp_path, command, SHUFFLES, own_sh=WRAPPER)
    assert "script-error" not in found
    assert ("dataloader-bottleneck" in found) is read
