"""Whether the training goes on after an evaluation with the weights that it had before."""

from __future__ import annotations

import pytest

from tests.recorder.conftest import Record

SCRIPT = """
import copy
import torch
from torch import nn
torch.manual_seed(0)
model, data = nn.Linear(4, 1), torch.randn(8, 4)
average = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def put(source, target):
    with torch.no_grad():
        for one, other in zip(source.parameters(), target.parameters()):
            other.data.copy_(one)

def evaluate(of):
    of.eval()
    with torch.no_grad():
        of(data)
    of.train()

for step in range(40):
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
    AFTER
    if step % 8 == 7:
        EVALUATE
"""


def compared(record: Record, evaluate: str, after: str = "pass") -> tuple[int, int, int]:
    ran = record(SCRIPT.replace("EVALUATE", evaluate).replace("AFTER", after))
    assert ran.exit_code == 0, ran.stderr
    flags = ran.known.flags
    assert flags is not None
    return flags.evaluations, flags.evaluations_with_changes, flags.changed_otherwise


@pytest.mark.parametrize(
    "evaluate",
    [
        "put(average, model); evaluate(model)",
        "evaluate(model); model.load_state_dict(average.state_dict())",
    ],
)
def test_weights_that_are_not_put_back(record: Record, evaluate: str) -> None:
    assert compared(record, evaluate) == (4, 4, 0)


@pytest.mark.parametrize(
    "evaluate",
    [
        "evaluate(model)",
        "kept = copy.deepcopy(model); put(average, model); evaluate(model); put(kept, model)",
        "other = copy.deepcopy(model); put(average, other); evaluate(other); evaluate(model)",
    ],
)
def test_weights_that_are_as_before(record: Record, evaluate: str) -> None:
    assert compared(record, evaluate) == (4, 0, 0)


def test_weights_that_the_script_changes_in_each_step(record: Record) -> None:
    evaluations, changed, otherwise = compared(record, "evaluate(model)", "put(average, model)")
    assert evaluations == changed == 4
    assert otherwise > 8


def test_without_an_evaluation(record: Record) -> None:
    assert compared(record, "pass") == (0, 0, 0)
