"""Whether a model takes anything of the states that a script loads."""

from __future__ import annotations

import pytest

from tests.recorder.conftest import Record

SCRIPT = """
import torch
from torch import nn

def resume(model, state, plain):
    LOAD

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.body(x))

model = Net()
plain = model.state_dict()
wrapped = {f"module.{name}": tensor for name, tensor in plain.items()}
resume(model, STATE, plain)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""
LOOSE = "model.load_state_dict(state, strict=False)"


def source(state: str, load: str = LOOSE) -> str:
    return SCRIPT.replace("LOAD", load).replace("STATE", state)


def test_names_of_another_wrapper(record: Record) -> None:
    ran = record(source("wrapped"))
    assert ran.exit_code == 0, ran.stderr
    assert ran.known.flags is not None
    one = ran.known.flags.not_loaded
    assert one is not None
    assert (one.entries, one.has, one.lacks) == (4, "module.body.weight", "body.weight")
    assert one.at is not None
    assert one.at.text == LOOSE


@pytest.mark.parametrize(
    ("state", "load"),
    [
        ("plain", LOOSE),
        ("plain", "model.load_state_dict(state)"),
        # Part of it, as for another head, and nothing at all.
        ("{**wrapped, 'body.weight': plain['body.weight']}", LOOSE),
        ("{}", LOOSE),
        # One form of the names after the other.
        ("wrapped", f"{LOOSE}; model.load_state_dict(plain, strict=False)"),
    ],
)
def test_names_of_the_model(record: Record, state: str, load: str) -> None:
    ran = record(source(state, load))
    assert ran.exit_code == 0, ran.stderr
    assert ran.known.flags is not None
    assert ran.known.flags.not_loaded is None
