"""The length of a dataset, where the source has it, and the samples that fill no batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Severity
from tests.launch.files import told
from tests.launch.test_guides import head

BATCH = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
"""
SELECTED = """
    train = load_dataset("imdb", split="train").select(range(1000))
    test = load_dataset("imdb", split="test").select(range(100))
"""
SLICED = """
    data = load_dataset("imdb", split="train[:1000]")
"""
MADE = """
    data = TensorDataset(torch.randn(1000, 8), torch.randint(2, (1000,)))
"""
DROPS = """
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    test_loader = DataLoader(test, args.batch_size)
"""
COMMAND = "torchrun --nproc-per-node {} train.py"


def length(folder: Path, ranks: int, *texts: str) -> str:
    return head(folder, COMMAND.format(ranks), train_py=BATCH + "".join(texts)).get("length", "")


@pytest.mark.parametrize("data", [SELECTED, SLICED, MADE])
def test_samples_that_fill_no_batch(tmp_path: Path, data: str) -> None:
    # 16 × 12 = 192 a step: five steps have 960; each rank has 84, of which the last 4 are dropped.
    assert length(tmp_path, 12, data, DROPS) == (
        "an epoch of 1,000 samples is 5 steps and drops 40"
    )
    assert length(tmp_path, 12, data) == "an epoch of 1,000 samples is 6 steps"


@pytest.mark.parametrize(
    "data",
    [
        SELECTED + SLICED.replace("1000", "2000"),
        SELECTED.replace("1000", "many"),
        SLICED.replace("train", "test"),
        MADE.replace("data", "val_data"),
        MADE.replace("torch.randn(1000, 8)", "images"),
        SLICED.replace("data = ", "if args.batch_size < 2: data = "),
        SELECTED.replace("train = ", "few = ").replace('split="train"', "name"),
    ],
)
def test_a_length_that_is_not_known(tmp_path: Path, data: str) -> None:
    assert length(tmp_path, 12, data, DROPS) == ""


def test_an_epoch_without_a_step(tmp_path: Path) -> None:
    # Each of 128 ranks has 8 samples of 1,000, and a batch needs 16.
    (finding,) = (
        one
        for one in told(tmp_path, COMMAND.format(128), train_py=BATCH + MADE + DROPS, gpus=128)
        if one.cause == "launch-config-invalid"
    )
    assert finding.severity is Severity.ERROR
    assert "an epoch has no step: 1000 samples (train.py:6)" in finding.because
    assert "`drop_last` (train.py:8)" in finding.because
    assert length(tmp_path, 128, MADE, DROPS) == (
        "an epoch of 1,000 samples is 0 steps and drops 1,000"
    )


@pytest.mark.parametrize(
    ("ranks", "texts"),
    [
        (64, (MADE, DROPS)),
        (128, (MADE,)),
        (128, (MADE, DROPS.replace("drop_last=True", "drop_last=False"))),
        (128, (MADE, DROPS, "\n    other_loader = DataLoader(data, 16)\n")),
    ],
    ids=["a batch for each", "nothing is dropped", "switched off", "another loader"],
)
def test_an_epoch_with_steps(tmp_path: Path, ranks: int, texts: tuple[str, ...]) -> None:
    source = BATCH + "".join(texts)
    found = told(tmp_path, COMMAND.format(ranks), train_py=source, gpus=ranks)
    assert "launch-config-invalid" not in {one.cause for one in found}
