"""What the model gets first is compared among ranks, where no loader gives the batches."""

from __future__ import annotations

import pytest

from tests.recorder.conftest import Record

TRAIN = """
import torch
from torch import nn
table = (torch.arange(4000) % 97).float().reshape(-1, 8)
def get_batch(step):
    return table[step : step + 16]
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    x = MADE
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("made", "random", "takes"),
    [
        ("torch.randn(16, 8)", True, False),
        ("table[torch.randint(400, (16,))]", False, True),
        ("get_batch(step)", False, False),
    ],
)
def test_the_first_inputs(record: Record, made: str, random: bool, takes: bool) -> None:
    ran = record(TRAIN.replace("MADE", made))
    assert ran.exit_code == 0, ran.stderr
    found = ran.known.inputs
    assert found is not None
    assert found.random is random
    assert [one.takes for one in found.origins if not one.counts] == [takes]
    assert len(found.batches) == len(set(found.batches)) == 8
