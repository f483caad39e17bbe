"""Mistakes of versions that a project pins, or that are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.files import FSDP
from tests.launch.reviewed import causes

PLAIN = """
    from accelerate import Accelerator
    accelerator = Accelerator()
    model, loader = accelerator.prepare(net(), data())
"""
DRAWS = """
    import numpy as np
    from torch.utils.data import DataLoader, Dataset
    class Masked(Dataset):
        def __getitem__(self, index):
            return self.items[index] * np.random.rand()
    loader = DataLoader(Masked(), num_workers=4{more})
"""
SHARDED = FSDP.replace("fsdp_config:", "fsdp_config:\n      fsdp_version: 2")


@pytest.mark.parametrize(
    ("more", "name", "pin", "wrong"),
    [
        ("", "requirements_txt", "accelerate==0.17.1\n", True),
        ("", "requirements_txt", "accelerate==0.17.1  # as on the cluster\n", True),
        ("", "pyproject_toml", 'dependencies = [\n  "accelerate==0.19.0",\n]\n', True),
        ("", "environment_yml", "  - pip:\n    - accelerate==0.19.0\n", True),
        ("--multi_gpu", "requirements_txt", "accelerate==0.17.1\n", False),
        ("", "requirements_txt", "accelerate==0.20.3\n", False),
        ("", "requirements_txt", "accelerate>=0.17\n", False),
        ("", "requirements_txt", "accelerate-helpers==0.17.1\n", False),
    ],
)
def test_accelerate_before_it_counted(
    tmp_path: Path, more: str, name: str, pin: str, wrong: bool
) -> None:
    command = f"accelerate launch {more} --num_processes 2 train.py"
    found = causes(tmp_path, command, PLAIN, **{name: pin})  # type: ignore[arg-type]
    assert ("not-launched-distributed" in found) is wrong


@pytest.mark.parametrize(
    ("more", "version", "told"),
    [
        ("", "1.8.1", True),
        ("", "1.9.0", False),
        ("", "2.7.1+cu128", False),
        (", worker_init_fn=seed", "1.8.1", False),
    ],
)
def test_torch_before_it_seeded_numpy(tmp_path: Path, more: str, version: str, told: bool) -> None:
    source, pin = DRAWS.format(more=more), f"torch=={version}\n"
    found = causes(tmp_path, "python train.py", source, requirements_txt=pin)
    assert ("identical-rng-across-workers" in found) is told


ONE_CYCLE = """
    import torch
    from accelerate import Accelerator
    accelerator = Accelerator()
    model, loader = net(), data()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.{name}(optimizer, 1e-2, total_steps=10 * len(loader))
    {prepared} = accelerator.prepare({prepared})
    for epoch in range(10):
        for batch in loader:
            accelerator.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
"""
ALL, BUT_ONE = "model, loader, optimizer, scheduler", "model, loader, optimizer"


@pytest.mark.parametrize(
    ("name", "prepared", "version", "wrong"),
    [
        ("OneCycleLR", ALL, "0.14.0", True),
        ("OneCycleLR", ALL, "0.15.0", False),
        ("OneCycleLR", ALL, "1.10.0", False),
        ("OneCycleLR", BUT_ONE, "0.14.0", False),
        ("LinearLR", ALL, "0.14.0", False),
    ],
)
def test_accelerate_before_it_stopped_at_the_end_of_a_cycle(
    tmp_path: Path, name: str, prepared: str, version: str, wrong: bool
) -> None:
    source, pin = ONE_CYCLE.format(name=name, prepared=prepared), f"accelerate=={version}\n"
    command = "accelerate launch --multi_gpu --num_processes 4 train.py"
    found = causes(tmp_path, command, source, requirements_txt=pin)
    assert ("accelerate-scheduler-steps-n-times" in found) is wrong


@pytest.mark.parametrize(
    ("config", "version", "wrong"),
    [
        (SHARDED, "5.4.0", True),
        (SHARDED, "5.5.4", True),
        (SHARDED, "5.3.0", False),
        (SHARDED, "5.6.0", False),
        (SHARDED.replace("loading: true", "loading: false"), "5.5.4", False),
        (SHARDED, "not a version", False),
    ],
)
def test_placeholders_of_transformers(
    tmp_path: Path, config: str, version: str, wrong: bool
) -> None:
    pin = f"transformers=={version}\n"
    command = "accelerate launch --config_file fsdp.yaml train.py"
    found = causes(tmp_path, command, PLAIN, fsdp_yaml=config, requirements_txt=pin)
    assert ("fsdp-ram-efficient-random-weights" in found) is wrong
