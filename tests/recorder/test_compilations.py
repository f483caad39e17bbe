"""Functions that torch.compile gave up on."""

from __future__ import annotations

import pytest

from tests.recorder.conftest import Record

SCRIPT = """
import torch
from torch import nn
torch._dynamo.config.recompile_limit = 3
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x, scale):
        return self.layer(x) * scale
model = Net()
model.compile(backend="eager", dynamic=DYNAMIC)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(ROWS, 4), SCALE).sum().backward()
    optimizer.step()
"""


def script(*, rows: str = "8", scale: str = "1.5", dynamic: bool = False) -> str:
    values = {"ROWS": rows, "SCALE": scale, "DYNAMIC": str(dynamic)}
    source = SCRIPT
    for name, value in values.items():
        source = source.replace(name, value)
    return source


def test_a_number_that_changes(record: Record) -> None:
    ran = record(script(scale="step / 8"))
    assert ran.exit_code == 0, ran.stderr
    assert ran.known.flags is not None
    (found,) = ran.known.flags.given_up
    assert (found.frame.function, found.times) == ("forward", 3)
    assert found.frame.text == "def forward(self, x, scale):"
    assert found.seconds > 0
    assert "scale" in found.reason


def test_the_tensors_that_it_traced_with_are_no_kept_graph(record: Record) -> None:
    ran = record(script(scale="step / 8"), stop_at=11)
    growth = ran.known.growth
    assert growth.graph_tensors is not None
    assert growth.graph_tensors <= 2


@pytest.mark.parametrize(
    "source",
    [
        script(),
        script(rows="8 + step % 2"),
        script(rows="8 + step", dynamic=True),
        script(scale="torch.tensor(step / 8)"),
    ],
    ids=["one shape", "two shapes", "any shape", "a tensor"],
)
def test_quiet(record: Record, source: str) -> None:
    ran = record(source)
    assert ran.exit_code == 0, ran.stderr
    assert ran.known.flags is not None
    assert ran.known.flags.given_up == ()
