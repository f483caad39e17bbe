"""Python configs of OpenMMLab, whose rate is for a number of GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Finding
from tests.launch.files import told

CAUSE = "effective-batch-lr-mismatch"
TRAIN = "import argparse\nargparse.ArgumentParser().add_argument('config')\n"
OLD = """
data = dict(samples_per_gpu=2, workers_per_gpu=2)
optimizer = dict(type="SGD", lr=0.02, momentum=0.9)  # this rate is for 8 GPUs
"""
NEW = """
train_dataloader = dict(batch_size=2, num_workers=2)
optim_wrapper = dict(type="OptimWrapper", optimizer=dict(type="SGD", lr=0.02))
auto_scale_lr = dict(enable=False, base_batch_size=16)
"""
BUILT = '_base_ = ["base.py"]\nmodel = dict(depth=101)\n'


def found(
    folder: Path, command: str, *, config: str, name: str = "config", base: str = ""
) -> Finding | None:
    (folder / f"{name}.py").write_text(config)
    (folder / "base.py").write_text(base)
    findings = told(folder, command, train_py=TRAIN)
    return next((one for one in findings if one.cause == CAUSE), None)


@pytest.mark.parametrize(
    ("config", "name", "base", "says"),
    [
        (OLD, "config", "", "0.02 (config.py:3) is for 8 GPUs (config.py:3); this starts 4"),
        (NEW, "config", "", "is for 16 samples (config.py:4); this starts 4 ranks"),
        (BUILT, "config", NEW, "0.02 (base.py:3) is for 16 samples (base.py:4)"),
        (NEW.partition("auto")[0], "net_8xb2_coco", "", "for 8 GPUs (net_8xb2_coco.py)"),
    ],
)
def test_fewer_gpus(tmp_path: Path, config: str, name: str, base: str, says: str) -> None:
    command = f"torchrun --nproc-per-node 4 train.py {name}.py"
    finding = found(tmp_path, command, config=config, name=name, base=base)
    assert finding is not None
    assert says in finding.because
    assert "0.5 times" in finding.because
    assert "0.01 (SGD, linear)" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("command", "config"),
    [
        ("torchrun --nproc-per-node 8 train.py config.py", OLD),
        ("torchrun --nproc-per-node 8 train.py config.py", NEW),
        ("torchrun --nproc-per-node 4 train.py config.py --auto-scale-lr", NEW),
        ("torchrun --nproc-per-node 4 train.py config.py", NEW.replace("False", "True")),
        (
            "torchrun --nproc-per-node 4 train.py config.py",
            NEW.replace("batch_size=2", "batch_size=4"),
        ),
        ("torchrun --nproc-per-node 4 train.py config.py", OLD.partition("#")[0]),
        ("torchrun --nproc-per-node 4 train.py config.py", "gpus = 8  # 8 GPUs\n"),
        ("torchrun --nproc-per-node 4 train.py config.py", "optimizer = dict(lr=\n"),
        (
            "torchrun --nproc-per-node 4 train.py config.py "
            "--cfg-options optim_wrapper.optimizer.lr=0.01",
            NEW,
        ),
    ],
)
def test_quiet(tmp_path: Path, command: str, config: str) -> None:
    assert found(tmp_path, command, config=config) is None


def test_bases_in_a_circle(tmp_path: Path) -> None:
    command = "torchrun --nproc-per-node 8 train.py config.py"
    assert found(tmp_path, command, config=BUILT, base='_base_ = "config.py"\n') is None
