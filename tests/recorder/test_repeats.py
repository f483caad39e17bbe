"""Layers that compute the same input twice in a step."""

from __future__ import annotations

import pytest

from ddoctor.evidence.training import Repeat
from tests.recorder.conftest import Record

SCRIPT = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 64)
        self.body = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
        self.drop = nn.Dropout(DROPS)
        self.head = nn.Linear(64, 50)
    def encode(self, ids):
        return self.body(self.drop(self.table(ids)) + 1.0)
    def forward(self, ids, other):
        hidden = self.encode(ids)
        again = AGAIN
        return self.head(hidden).mean() + again.mean()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(14):
    ids, other = torch.randint(0, 40, (2, 16, 8))
    optimizer.zero_grad()
    for part in range(2):
        loss = model(ids + part, other + part)
        loss.backward()
    optimizer.step()
"""


def repeat(record: Record, again: str, drops: float = 0.0) -> Repeat | None:
    source = SCRIPT.replace("AGAIN", again).replace("DROPS", str(drops))
    ran = record(source)
    assert ran.exit_code == 0, ran.stderr
    assert ran.known.flags is not None
    return ran.known.flags.repeat


def test_an_encoder_that_computes_the_same_again(record: Record) -> None:
    found = repeat(record, "self.encode(ids)")
    assert found is not None
    assert not found.random
    assert found.line is not None
    assert found.line.text == "again = self.encode(ids)"
    assert found.seconds > 0


def test_a_body_for_each_of_two_heads(record: Record) -> None:
    """One line computes it twice, in a loop."""
    found = repeat(record, "sum(self.head(self.body(hidden)) for _ in range(2))")
    assert found is not None
    assert found.line is not None
    assert found.line.text.startswith("again = sum(")


def test_dropout_makes_the_results_differ(record: Record) -> None:
    found = repeat(record, "self.encode(ids)", drops=0.2)
    assert found is not None
    assert found.random


def test_weights_that_have_changed_meanwhile(record: Record) -> None:
    """As those of a critic, that is called once more for the generator."""
    source = SCRIPT.replace("AGAIN", "hidden").replace("DROPS", "0.2")
    source += """
    ids = torch.randint(0, 40, (16, 8))
for step in range(20):
    model(ids, ids).backward()
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.01)
    model(ids, ids).backward()
    optimizer.step()
"""
    ran = record(source.replace("range(14)", "range(2)"))
    assert ran.exit_code == 0, ran.stderr
    assert ran.known.flags is not None
    assert ran.known.flags.repeat is None


@pytest.mark.parametrize(
    "again",
    [
        "hidden",
        # Another input, the same with a change, and a block that is checkpointed.
        "self.encode(other)",
        "self.encode(ids + 1)",
        "checkpoint(self.body, hidden, use_reentrant=False)",
    ],
)
def test_quiet(record: Record, again: str) -> None:
    assert repeat(record, again) is None


def test_what_differs_later_does_not_count(record: Record) -> None:
    """Only the embedding computes the same: as with another condition after it."""
    found = repeat(record, "self.body(self.table(ids) * 2.0)")
    assert found is not None
    # Six layers of 128 rows follow, and take longer.
    assert found.seconds < 0.001


RECURRENT = """
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = PARAMETRIZED
        self.head = nn.Linear(32, 2)
    def forward(self, x):
        state = torch.zeros(4, 32)
        for time in range(12):
            state = torch.tanh(x[:, time] + self.cell(state))
        return self.head(state)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(14):
    WITHIN
    model_output.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PLAIN = "model_output = model(torch.randn(4, 12, 32))"
CACHED = "with parametrize.cached():\n        model_output = model(torch.randn(4, 12, 32))"
ORTHOGONAL = "parametrizations.orthogonal(nn.Linear(32, 32, bias=False))"


def test_a_weight_that_each_time_step_computes(record: Record) -> None:
    ran = record(RECURRENT.replace("PARAMETRIZED", ORTHOGONAL).replace("WITHIN", PLAIN))
    assert ran.exit_code == 0, ran.stderr
    assert ran.known.flags is not None
    found = ran.known.flags.repeat
    assert found is not None
    assert (found.weights, found.random) == (11, False)
    assert found.line is not None
    assert "self.cell(state)" in found.line.text


@pytest.mark.parametrize(
    ("cell", "within"), [(ORTHOGONAL, CACHED), ("nn.Linear(32, 32, bias=False)", PLAIN)]
)
def test_a_weight_that_is_computed_once(record: Record, cell: str, within: str) -> None:
    ran = record(RECURRENT.replace("PARAMETRIZED", cell).replace("WITHIN", within))
    assert ran.exit_code == 0, ran.stderr
    assert ran.known.flags is not None
    assert ran.known.flags.repeat is None
