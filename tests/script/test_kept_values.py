"""What a training loop keeps of each step."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read
from tests.script.sources import STEP, ddp

BEFORE = (
    "import time\nfrom collections import deque\nhistory, seen, steps = [], {}, 0\n"
    "recent = deque(maxlen=100)"
)


@pytest.mark.parametrize(
    "line",
    [
        "history.append(batch)",
        "history.append(torch.ones(2_000_000))",
        "history.append(loss.detach())",
        "history += [loss.detach()]",
        "history.append({'loss': loss.item(), 'batch': batch})",
        "seen[steps] = batch.cpu()",
        "seen[epoch, steps] = model(batch)",
    ],
)
def test_values_of_each_step(script: Read, line: str) -> None:
    (kept,) = script(ddp(before=BEFORE, step=f"{STEP}steps += 1\n{line}")).kept_values
    assert kept.text == line


@pytest.mark.parametrize(
    "line",
    [
        "history.append(loss.item())",
        "history.append(float(loss))",
        "history.append((number, loss.item()))",
        "history.append((steps, time.perf_counter()))",
        "history.append(f'{steps}: {loss.item():.3f}')",
        "value = loss.item()\nhistory.append(value / 4)",
        "recent.append(batch)",
        "history.append(batch)\nif len(history) > 9:\n    history.pop(0)",
        "history.append(batch)\nif steps % 9 == 0:\n    history = []",
        "seen['last'] = batch",
        "steps += batch.sum()",
    ],
)
def test_numbers_and_what_is_emptied(script: Read, line: str) -> None:
    assert script(ddp(before=BEFORE, step=f"{STEP}steps += 1\n{line}")).kept_values == ()


TRAINER = """import torch, torch.nn as nn
from torch.utils.data import DataLoader
history = []
class Trainer:
    def __init__(self, model, loader):
        self.model, self.optimizer = model, torch.optim.SGD(model.parameters())
        self.kept, self.loader = [], loader
    def step(self, batch):
        rows = []
        self.optimizer.zero_grad()
        self.model(batch).sum().backward()
        self.optimizer.step()
        {line}
    def fit(self):
        for batch in self.loader:
            self.step(batch)
            {after}
Trainer(nn.parallel.DistributedDataParallel(nn.Linear(2, 2)), DataLoader(data)).fit()
"""


@pytest.mark.parametrize(
    "line", ["history.append(batch)", "self.kept.append(batch)", "self.kept += [batch * 2]"]
)
def test_a_method_that_the_loop_calls(script: Read, line: str) -> None:
    (kept,) = script(TRAINER.format(line=line, after="pass")).kept_values
    assert kept.text == line


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("rows.append(batch)", "pass"),
        ("self.kept.append(batch)", "self.kept.clear()"),
        ("self.kept.append(batch)\n    def reset(self):\n        self.kept = []", "pass"),
        ("history.append(batch)\n        history.pop(0)", "pass"),
        ("history.append(1)", "pass"),
    ],
)
def test_what_a_method_lets_go(script: Read, line: str, after: str) -> None:
    assert script(TRAINER.format(line=line, after=after)).kept_values == ()
