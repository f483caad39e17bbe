"""Optimizers that are made for one step each."""

from __future__ import annotations

import pytest

from ddoctor.recorder.recorded import Facts
from tests.recorder.conftest import Record

SCRIPT = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
head = nn.Linear(8, 2)
def make():
    return MAKE
optimizer = make()
for step in range(14):
    model(torch.randn(4, 8)).sum().backward()
    AROUND
    optimizer.zero_grad()
"""
MAKE = "torch.optim.Adam(model.parameters(), lr=0.001)"
AGAIN = "optimizer = make()\n    optimizer.step()"


def recorded(record: Record, make: str, around: str) -> tuple[Facts, int]:
    ran = record(SCRIPT.replace("MAKE", make).replace("AROUND", around))
    assert ran.exit_code == 0, ran.stderr
    return ran.known, ran.done


@pytest.mark.parametrize(
    "make", [MAKE, "torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)"]
)
def test_one_for_each_step(record: Record, make: str) -> None:
    known, done = recorded(record, make, AGAIN)
    assert done == 13
    assert known.flags is not None
    assert known.flags.remade
    assert known.flags.remade_at is not None
    assert known.flags.remade_at.text == f"return {make}"
    # The model is known.
    assert known.wrappers


@pytest.mark.parametrize(
    ("make", "around"),
    [
        pytest.param(MAKE, "optimizer.step()", id="made once"),
        pytest.param("torch.optim.SGD(model.parameters(), lr=0.01)", AGAIN, id="keeps nothing"),
        pytest.param(
            MAKE,
            "if step % 3 == 0:\n        optimizer = make()\n    optimizer.step()",
            id="several steps each, as for the tasks of meta-learning",
        ),
        pytest.param(
            MAKE,
            "if step < 5:\n        optimizer = make()\n    optimizer.step()",
            id="at the beginning alone",
        ),
        pytest.param(
            "torch.optim.Adam(nn.Linear(8, 2).parameters(), lr=0.001)",
            "model[0] = nn.Linear(8, 16)\n    optimizer = torch.optim.Adam(model.parameters())\n"
            "    optimizer.step()",
            id="of other parameters each",
        ),
    ],
)
def test_quiet(record: Record, make: str, around: str) -> None:
    known, _ = recorded(record, make, around)
    assert known.flags is None or not known.flags.remade


def test_two_optimizers_of_a_shared_part(record: Record) -> None:
    """They begin with the same parameter, and are two all the same: a step is both."""
    both = (
        "first = getattr(model, 'first', None) or torch.optim.Adam(model.parameters())\n"
        "    model.first = first\n"
        "    first.step()\n"
        "    optimizer.step()"
    )
    known, done = recorded(
        record, "torch.optim.Adam([*model.parameters(), *head.parameters()])", both
    )
    assert done == 13
    assert known.flags is not None
    assert not known.flags.remade
