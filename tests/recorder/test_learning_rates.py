"""Learning rates that reach zero."""

from __future__ import annotations

import pytest

from tests.recorder.conftest import Record

SCRIPT = """
import torch
from torch import nn
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: SCALE)
for step in range(60):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
"""


@pytest.mark.parametrize(
    ("rate", "scale", "least", "most"),
    [
        ("0.1", "max(0.0, 1 - step / 10)", 40, 50),
        ("0.0", "1.0", 50, 60),
        ("0.1", "1.0", 0, 0),
        ("0.1", "max(1e-9, 1 - step / 10)", 0, 0),
        # It warms up, or begins again.
        ("0.1", "0.0 if step < 10 else 1.0", 0, 0),
        ("0.1", "float(step % 20 != 0)", 0, 0),
        ("torch.tensor(0.0)", "1.0", 0, 0),
    ],
)
def test_steps_without_a_rate(record: Record, rate: str, scale: str, least: int, most: int) -> None:
    ran = record(SCRIPT.replace("RATE", rate).replace("SCALE", scale))
    assert ran.exit_code == 0, ran.stderr
    assert ran.known.flags is not None
    assert least <= ran.known.flags.zero_steps <= most
