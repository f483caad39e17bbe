"""What the parameters of a model without a wrapper add up to, first and last."""

from __future__ import annotations

from ddoctor.evidence.wrapping import ParameterSum
from tests.recorder.conftest import Record

SCRIPT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1))
model[0].bias.requires_grad_(False)
print(*(one.double().sum().item() for one in model.parameters()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(120):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""


def sums(record: Record, world: int) -> tuple[list[float], tuple[ParameterSum, ...]]:
    """As the script prints them before its first step, and as they were recorded."""
    ran = record(SCRIPT.replace("WORLD", str(world)))
    assert ran.exit_code == 0, ran.stderr
    (wrapper,) = ran.known.wrappers
    return [float(one) for one in ran.stdout.split()], wrapper.parameter_sums


def test_trained_ones_that_do_not_begin_with_one_number(record: Record) -> None:
    first, rows = sums(record, world=2)
    assert {row.name: row.first for row in rows} == {"0.weight": first[0], "2.weight": first[4]}
    assert all(row.last != row.first and row.magnitude >= abs(row.last) for row in rows)


def test_none_where_there_is_one_rank(record: Record) -> None:
    assert sums(record, world=1)[1] == ()
