"""Blocks that are computed again are counted, and nothing else."""

from __future__ import annotations

import pytest

from tests.recorder.conftest import Record, Run

TRAIN = """
import sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
reentrant = {"without": None, "new": False, "old": True}[sys.argv[1]]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
    def forward(self, x):
        for block in self.blocks:
            if reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=reentrant)
        return x
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    x = torch.ones(2, 8, requires_grad=True)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 8:
        with torch.no_grad():
            model(x)
print(f"{float(sum(one.sum() for one in model.parameters())):.9f}")
"""
# Row 0 is the first two rounds, of which the model is not known yet.
KNOWN = slice(1, None)


@pytest.mark.parametrize(
    ("kind", "blocks"),
    [
        ("new", 3),
        pytest.param("old", 3, marks=pytest.mark.ward),
        pytest.param("without", 0, marks=pytest.mark.ward),
    ],
)
def test_each_block_of_a_forward_pass(bare: Run, record: Record, kind: str, blocks: int) -> None:
    ran = record(TRAIN, "train.py", kind)
    assert ran.exit_code == 0, ran.stderr
    # In the backward pass they run once more, and in the evaluation nothing is kept.
    assert set(ran.counted("checkpointed")[KNOWN]) == {blocks}
    assert ran.stdout == bare(TRAIN, "train.py", kind).stdout
    # No GPU.
    assert ran.known.growth.device_total is None
