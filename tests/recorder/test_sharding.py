"""How FSDP spreads a model is read off its modules."""

from __future__ import annotations

from tests.recorder.conftest import Record

TRAIN = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
class Usual(nn.Sequential): pass
class Kept(nn.Sequential): pass
class Offloaded(nn.Sequential): pass
class Bare(nn.Sequential): pass
options = {
    Usual: {},
    Kept: {"reshard_after_forward": False},
    Offloaded: {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
}
models = []
for kind in (Usual, Kept, Offloaded, Bare):
    models.append(kind(nn.Linear(4, 4), nn.Linear(4, 4)))
    if kind in options:
        for layer in models[-1]:
            fully_shard(layer, **options[kind])
        fully_shard(models[-1], **options[kind])
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
for step in range(8):
    for model, optimizer in zip(models, optimizers):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_each_kind_is_told(record: Record) -> None:
    ran = record(TRAIN)
    assert ran.exit_code == 0, ran.stderr
    assert ran.known.fsdp
    assert {one.name: one.sharding for one in ran.known.wrappers} == {
        "Usual": "all",
        "Kept": "gradients",
        # Another step of the optimizer than what a plan knows.
        "Offloaded": "",
        "Bare": "",
    }
