"""Fingerprints of data are equal for equal data, and for nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from ddoctor.recorder.fingerprints import of_dataset, of_items, of_tensors, random_numbers


class Items(Dataset[Any]):
    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)

    def __getitem__(self, index: int) -> int:
        return index


def fields() -> Iterator[dict[str, Any]]:
    yield {}
    yield {"paths": ["a.png", "b.png"], "labels": {"cat": 0}, "root": Path("data")}
    yield {"table": np.arange(9.0), "transform": partial(torch.add, alpha=2)}
    yield {"generator": np.random.default_rng(), "names": np.array(["a", "b"], dtype=object)}
    yield {"model": torch.nn.Linear(2, 2), "inner": Items(paths=("a",)), "half": torch.half}


@pytest.mark.parametrize("held", [*fields()])
def test_equal_data(held: dict[str, Any]) -> None:
    assert of_dataset(Items(**held))
    assert of_dataset(Items(**held)) == of_dataset(Items(**dict(held)))


def test_the_state_of_generators_does_not_count() -> None:
    drawn = random.Random(3)
    drawn.random()
    assert of_dataset(Items(drawn=drawn)) == of_dataset(Items(drawn=random.Random(4)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Items(path="shard0"), Items(path="shard1")),
        (Items(rows=list(range(1000))), Items(rows=[*range(999), 0])),
        (Items(table=np.arange(9)), Items(table=np.arange(1, 10))),
        (TensorDataset(torch.zeros(4)), TensorDataset(torch.ones(4))),
        (Subset(Items(), [0, 2]), Subset(Items(), [1, 3])),
        (Items(inner=Items(path="a")), Items(inner=Items(path="b"))),
        (Items(), Subset(Items(), [0])),
    ],
)
def test_other_data(one: Dataset[Any], other: Dataset[Any]) -> None:
    assert of_dataset(one)
    assert of_dataset(one) != of_dataset(other)


def test_what_hides_its_data_has_none(tmp_path: Path) -> None:
    with (tmp_path / "shard0").open("w") as file:
        assert of_dataset(Items(file=file)) is None
    deep: list[Any] = []
    for _ in range(20):
        deep = [deep]
    assert of_dataset(Items(deep=deep)) is None


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(32, 64),
        torch.rand(8, 3, 16, 16),
        torch.randint(50257, (16, 128)),
        torch.randint(10, (16, 128)),
    ],
)
def test_random_numbers(tensor: torch.Tensor) -> None:
    assert random_numbers([tensor])
    assert random_numbers([tensor, torch.ones(128)])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(1000),
        torch.randn(1000) + 1,
        3 * torch.randn(1000),
        torch.poisson(torch.full((1000,), 3.0)).long(),
        torch.rand(1000) ** 2,
        torch.ones(1000),
        torch.randn(8),
    ],
)
def test_numbers_that_are_not_random(tensor: torch.Tensor) -> None:
    assert not random_numbers([tensor])
    assert not random_numbers([tensor, torch.ones(128)])


def test_equal_tensors() -> None:
    one = torch.arange(12).reshape(3, 4)
    assert of_tensors([one]) == of_tensors([one.t().contiguous().t()])
    assert of_tensors([one]) != of_tensors([one + 1])
    assert of_tensors([]) == ""


class Rows:
    def __init__(self, names: list[str], labels: object) -> None:
        self.names, self.labels = names, labels
        self.weights = [0.5] * len(names)
        self.classes = ["a", "b"]

    def __len__(self) -> int:
        return len(self.names)


def test_fields_of_all_items() -> None:
    one = of_items(Rows(["x", "y", "z"], torch.tensor([0, 1, 0])))
    turned = of_items(Rows(["y", "x", "z"], torch.tensor([1, 0, 1])))
    assert one is not None
    assert turned is not None
    assert one.keys() == turned.keys() == {"names", "labels"}
    assert one["names"][0] != turned["names"][0]
    assert one["names"][1] == turned["names"][1]
    assert one["labels"][1] != turned["labels"][1]
    assert one == of_items(Rows(["x", "y", "z"], np.array([0, 1, 0])))


def test_fields_of_a_part() -> None:
    rows: Any = Rows(["x", "y", "z"], [1, 2, 3])
    part: Subset[Any] = Subset(rows, [2, 0])
    found = of_items(part)
    assert found is not None
    assert found.keys() == {"indices", "dataset.names", "dataset.labels"}


def test_nothing_of_what_has_no_fields() -> None:
    assert of_items([1, 2, 3]) == {}
