"""Clipping at the wrong place, and of a model of which each rank has a part."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read
from tests.script.sources import SET_UP, ddp

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


ADAM = SET_UP + "optimizer = torch.optim.AdamW(model.parameters())\n"
TO_CLIP = f"torch.nn.utils.{CLIP}\n"
BACK, STEP = "model(batch).sum().backward()\n", "optimizer.step()\n"
ZERO = "optimizer.zero_grad()\n"


@pytest.mark.parametrize(
    "step",
    [
        ZERO + BACK + STEP + TO_CLIP,
        BACK + STEP + TO_CLIP + ZERO,
        BACK + STEP + ZERO + TO_CLIP,
        ZERO + TO_CLIP + BACK + STEP,
    ],
)
def test_where_it_changes_nothing(script: Read, step: str) -> None:
    (line,) = script(ddp(set_up=ADAM, step=step)).clipped_too_late
    assert line.text == TO_CLIP.strip()


@pytest.mark.parametrize(
    "step",
    [
        ZERO + BACK + TO_CLIP + STEP,
        BACK + TO_CLIP + STEP + ZERO,
        # The gradients of several passes add up.
        f"{BACK}{TO_CLIP}if number % 4 == 0:\n    {STEP}    {ZERO}",
        f"{BACK}if number % 4 == 0:\n    {TO_CLIP}    {STEP}    {ZERO}",
        # Two models in turns.
        f"{BACK}{STEP}{TO_CLIP}other.step()\n{ZERO}{BACK}",
        BACK + STEP + TO_CLIP,
    ],
)
def test_quiet_where_it_may_change_something(script: Read, step: str) -> None:
    assert script(ddp(set_up=ADAM, step=step)).clipped_too_late == ()
