"""How often the thread looks that sees memory grow."""

from __future__ import annotations

import pytest

from ddoctor.analysis.trend import FEWEST_LOOKS
from tests.recorder.conftest import Record

SLOW_TO_BEGIN = """
import time
import torch
from torch import nn
time.sleep(3.5)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
"""


@pytest.mark.ward
def test_a_short_training_is_weighed_often_after_a_long_start(record: Record) -> None:
    found = record(SLOW_TO_BEGIN)
    steps = {done for _, done, _, *_ in found.known.memory if done}
    assert len(steps) >= FEWEST_LOOKS
