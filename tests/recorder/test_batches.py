"""Batches of the kinds that loaders give, with more samples and with fewer."""

from __future__ import annotations

from collections import UserDict
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils.data import default_collate
from transformers import BatchEncoding

from ddoctor.recorder.batches import of_size, samples
from tests.recorder.conftest import Run


class Fields(NamedTuple):
    image: Tensor
    label: Tensor


def test_more_are_the_same_over_and_over() -> None:
    batch = torch.arange(6).reshape(3, 2)
    assert of_size(batch, 7)[:, 0].tolist() == [0, 2, 4, 0, 2, 4, 0]


def test_fewer_are_the_first() -> None:
    assert of_size(torch.arange(5), 2).tolist() == [0, 1]


def test_each_field_of_a_dictionary_and_nothing_else() -> None:
    batch = {"ids": torch.zeros(4, 9), "labels": torch.zeros(4), "weights": torch.zeros(9)}
    found = of_size(batch | {"epoch": 3, "scale": torch.tensor(2.0)}, 6)
    assert {name: tuple(one.shape) for name, one in found.items() if name in batch} == {
        "ids": (6, 9),
        "labels": (6,),
        "weights": (9,),
    }
    assert (found["epoch"], found["scale"].item()) == (3, 2.0)
    assert len(batch["ids"]) == 4, "the loader's own stays as it is"


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_pair_stays_a_pair_even_of_two_samples(kind: Any) -> None:
    found = of_size(kind([torch.zeros(2, 3), torch.zeros(2)]), 5)
    assert type(found) is kind
    assert [tuple(one.shape) for one in found] == [(5, 3), (5,)]


def test_named_fields_keep_their_names() -> None:
    found = of_size(Fields(torch.zeros(2, 3), torch.zeros(2)), 4)
    assert (type(found), len(found.image), len(found.label)) == (Fields, 4, 4)


def test_texts_of_the_samples_go_with_them() -> None:
    batch = default_collate([{"text": "a", "label": 0}, {"text": "b", "label": 1}])
    found = of_size(batch, 3)
    assert (found["text"], found["label"].tolist()) == (["a", "b", "a"], [0, 1, 0])


def test_a_dictionary_keeps_its_kind_and_its_methods() -> None:
    batch = BatchEncoding({"input_ids": torch.zeros(2, 4)})
    found = of_size(batch, 3)
    assert isinstance(found, BatchEncoding)
    assert found.to("cpu")["input_ids"].shape == (3, 4)
    assert batch["input_ids"].shape == (2, 4)


def test_nested() -> None:
    found = of_size({"views": [torch.zeros(2, 3), torch.zeros(2, 5)], "y": torch.zeros(2)}, 4)
    assert [len(one) for one in found["views"]] == [4, 4]


@pytest.mark.parametrize("batch", [3, "text", {"a": 1}, [], torch.tensor(1.0), None])
def test_what_has_no_samples_stays(batch: Any) -> None:
    assert samples(batch) == 0
    assert of_size(batch, 4) is batch


def test_samples_are_those_of_the_first_tensor() -> None:
    assert samples(UserDict(epoch=1, x=(torch.tensor(1.0), torch.zeros(3, 4)))) == 3


OF_SEVERAL_LENGTHS = """
import torch
from torch.utils.data import DataLoader
from ddoctor.recorder.batches import Batches

batches = Batches(lambda: True)
batches.install()
zeros = lambda lengths: {"x": torch.zeros(2, lengths[0])}
loader = DataLoader([8, 32, 16, 8, 64], batch_size=1, collate_fn=zeros)
for number, batch in enumerate(loader):
    print(*batch.pop("x").shape)
    if number == 2:
        batches.wanted = 5
"""


def test_all_sizes_are_made_of_the_longest_of_the_first_batches(bare: Run) -> None:
    """Though the script has taken it to pieces."""
    ran = bare(OF_SEVERAL_LENGTHS)
    assert ran.stdout.splitlines() == ["2 8", "2 32", "2 16", "5 32", "5 32"], ran.stderr


OF_ANOTHER_DATASET = """
import torch
from torch.utils.data import DataLoader
from ddoctor.recorder.batches import Batches

class Zeros:
    def __init__(self, length):
        self.length = length
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return torch.zeros(self.length)

batches = Batches(lambda: True)
batches.install()
for length in (8, 32, 4, 16):
    print(*next(iter(DataLoader(Zeros(length), batch_size=2))).shape)
    batches.wanted = 5
"""


def test_a_dataset_where_another_was_is_not_taken_for_it(bare: Run) -> None:
    """Python gives a new object the place, and so the identity, of one that has gone."""
    ran = bare(OF_ANOTHER_DATASET)
    assert ran.stdout.splitlines() == ["2 8", "5 32", "5 4", "5 16"], ran.stderr
