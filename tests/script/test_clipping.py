"""Clipping of a model of which each rank has a part."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read

SCRIPT = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_

def update(model, optimizer, loss):
    loss.backward()
    {clip}
    optimizer.step()

def main():
    model = torch.nn.Linear(8, 8).cuda()
    {wrap}
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in loader:
        update(model, optimizer, model(batch).sum())

main()
"""
CLIP, WRAP = "clip_grad_norm_(model.parameters(), 1.0)", "model = FSDP(model, device_id=0)"


@pytest.mark.parametrize("clip", [CLIP, f"torch.nn.utils.{CLIP}", f"norm = {CLIP}"])
def test_by_each_rank(script: Read, clip: str) -> None:
    (line,) = script(SCRIPT.format(clip=clip, wrap=WRAP)).clipped_in_parts
    assert CLIP in line.text


@pytest.mark.parametrize(
    ("clip", "wrap"),
    [
        ("model.clip_grad_norm_(1.0)", WRAP),
        (CLIP, "fully_shard(model)"),
        (CLIP, "model = DDP(model)"),
        (CLIP, "model = FSDP(model) if args.fsdp else DDP(model)"),
        (CLIP, "model = FSDP(model, sharding_strategy=ShardingStrategy.NO_SHARD)"),
        ("clip_grad_norm_(other.parameters(), 1.0)", WRAP),
        ("clip_grad_norm_(parameters, 1.0)", WRAP),
    ],
)
def test_quiet(script: Read, clip: str, wrap: str) -> None:
    assert script(SCRIPT.format(clip=clip, wrap=wrap)).clipped_in_parts == ()
