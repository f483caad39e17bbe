"""LightningCLI: what its files and options give the Trainer, and what a launcher starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ddoctor.evidence.section import Evidence
from ddoctor.models import Finding, Severity
from ddoctor.report.launch import starts
from tests.launch.reviewed import reviewed
from tests.launched import launched

SCRIPT = """
from lightning.pytorch.cli import LightningCLI
from model import Data, Net

class Line(LightningCLI):
    pass

if __name__ == "__main__":
    Line(Net, Data, {})
"""
CONFIG = """
trainer:
  accelerator: {accelerator}
  devices: {devices}
  num_nodes: {nodes}
  strategy: {strategy}
  max_epochs: 10
data:
  batch_size: 32
"""
FIT = "train.py fit --config run.yaml"
TWO = "torchrun --standalone --nproc-per-node 2 "


def config(
    *, devices: str = "4", nodes: str = "1", strategy: str = "ddp", accelerator: str = "gpu"
) -> str:
    return CONFIG.format(devices=devices, nodes=nodes, strategy=strategy, accelerator=accelerator)


def told(folder: Path, command: str, run_yaml: str, defaults: str = "") -> Sequence[Finding]:
    found = reviewed(folder, command, SCRIPT.format(defaults), gpus=8, run_yaml=run_yaml)
    return [one for one in found if "the Trainer gets" in one.because]


@pytest.mark.parametrize(
    ("run", "more", "defaults", "begins"),
    [
        (config(), "", "", "1 host × 4 ranks, by lightning"),
        (config(nodes="2"), "", "", "2 hosts × 4 ranks, by lightning"),
        (config(devices="[3]"), "", "", "one process, by lightning"),
        (config(devices="[0, 1]"), "", "", "1 host × 2 ranks, by lightning"),
        (config(devices="-1"), "", "", "1 host × a rank for each GPU, by lightning"),
        (config(devices="auto"), "", "", "1 host × a rank for each GPU, by lightning"),
        (config(), "--trainer.devices 2", "", "1 host × 2 ranks, by lightning"),
        (config(), "--trainer.devices=2 --trainer.num_nodes 3", "", "3 hosts × 2 ranks"),
        (config(), "", "trainer_defaults={'devices': 8}", "1 host × 4 ranks, by lightning"),
        ("data:\n  x: 1\n", "", "trainer_defaults={'devices': 8}", "1 host × 8 ranks"),
        ("fit:\n  trainer:\n    devices: 2\n", "", "", "1 host × 2 ranks, by lightning"),
        ("test:\n  trainer:\n    devices: 2\n", "", "", "one process, by python"),
        (config(accelerator="cpu"), "", "", "one process, by python"),
    ],
)
def test_what_it_starts(tmp_path: Path, run: str, more: str, defaults: str, begins: str) -> None:
    command = f"python {FIT} {more}".strip()
    launch = launched(tmp_path, command, run_yaml=run, train_py=SCRIPT.format(defaults))
    assert dict(starts(Evidence([launch])))["starts"].startswith(begins)


def test_a_later_file_and_a_short_option(tmp_path: Path) -> None:
    command = "python train.py fit -c run.yaml -c big.yaml"
    big = "trainer:\n  devices: 8\n  strategy:\n    class_path: lightning.FSDPStrategy\n"
    launch = launched(
        tmp_path, command, run_yaml=config(), big_yaml=big, train_py=SCRIPT.format("")
    )
    found = dict(starts(Evidence([launch])))
    assert found["starts"] == "1 host × 8 ranks, by lightning"
    assert found["parallelism"].startswith("FSDP")
    assert "32 a rank" in found["batch"]


@pytest.mark.parametrize(
    ("command", "run", "then"),
    [
        (TWO + FIT, config(), "starts 2 ranks (the command line): Lightning raises a ValueError"),
        (TWO + FIT, config(devices="2", nodes="2"), "num_nodes 2 (run.yaml:4), and torchrun"),
        (TWO + FIT, config(devices="1"), "Lightning raises a ValueError"),
        (f"{TWO}{FIT} --trainer.devices 8", config(devices="2"), "devices 8 (the command line)"),
        (TWO + FIT, config(devices="2"), ""),
        (TWO + FIT, config(devices="[1, 3]"), ""),
        (TWO + FIT, config(devices="auto"), ""),
        (f"{TWO}{FIT} --trainer.devices 2", config(), ""),
        (f"torchrun --nnodes 2 --nproc-per-node 4 {FIT}", config(nodes="2"), ""),
        (f"python {FIT}", config(), ""),
        (f"srun --ntasks-per-node 8 --nodes 1 python {FIT}", config(), "starts 8 tasks on each"),
        (f"srun --ntasks-per-node 4 --nodes 2 python {FIT}", config(), "starts 2 nodes"),
        (f"srun --ntasks-per-node 4 --nodes 2 python {FIT}", config(nodes="2"), ""),
        (f"srun --job-name bash --ntasks-per-node 8 --nodes 1 python {FIT}", config(), ""),
    ],
)
def test_other_ranks_than_the_file_asks_for(
    tmp_path: Path, command: str, run: str, then: str
) -> None:
    found = told(tmp_path, command, run)
    assert bool(found) is bool(then)
    for one in found:
        assert then in one.because
        assert one.severity is Severity.ERROR


def test_a_class_of_another_package(tmp_path: Path) -> None:
    source = SCRIPT.format("").replace("lightning.pytorch.cli", "own.cli")
    found = reviewed(tmp_path, TWO + FIT, source, gpus=8, run_yaml=config())
    assert not [one for one in found if "the Trainer gets" in one.because]
