"""How many turns the loops around the training have on this rank."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.recorder.conftest import Record

SCRIPT = """
import torch
from dataclasses import dataclass
from torch import nn

@dataclass
class Options:
    steps: int = 70

class Rows:
    def __init__(self, count):
        self.count = count
    @property
    def asked(self):
        raise RuntimeError("a property of the script was called")
    def __len__(self):
        raise RuntimeError("a method of the script was called")
    def epoch(self, seed, count):
        yield from [torch.randn(4, 4)] * 100

options, rows, size = Options(), Rows(90), 2
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train(batches, count):
    for number, x in LOOP:
        LEAVES
        optimizer.zero_grad()
        model(torch.ones(4, 4)).square().mean().backward()
        optimizer.step()

for epoch in range(3):
    train([torch.randn(4, 4)] * 80, 75)
"""


def turns(
    record: Record, loop: str, leaves: str = "pass"
) -> tuple[tuple[int | None, Mapping[str, int]], ...]:
    ran = record(SCRIPT.replace("LOOP", loop).replace("LEAVES", leaves), stop_at=40)
    assert ran.exit_code == 0, ran.stderr
    return tuple((one.turns, one.numbers) for one in ran.known.turns)


EPOCHS: tuple[int, Mapping[str, int]] = (3, {})


@pytest.mark.parametrize(
    ("loop", "known"),
    [
        ("enumerate(batches)", (80, {})),
        ("zip(range(count), batches)", (None, {"count": 75})),
        ("((one, one) for one in batches)", (None, {})),
        ("enumerate(range(0, len(batches) // size * size, size))", (40, {})),
        ("enumerate(range(options.steps))", (70, {})),
        ("enumerate(rows.epoch(epoch, rows.count))", (None, {"epoch": 0, "rows.count": 90})),
        ("enumerate([rows, rows.asked] if False else batches)", (None, {})),
        ("enumerate(torch.ones(66, 4))", (None, {})),
    ],
)
def test_turns_of_the_loops(
    record: Record, loop: str, known: tuple[int | None, Mapping[str, int]]
) -> None:
    assert turns(record, loop) == (known, EPOCHS)


def test_a_loop_that_something_else_may_end(record: Record) -> None:
    leaves = "if number == 60:\n            break"
    assert turns(record, "enumerate(batches)", leaves) == (EPOCHS,)
