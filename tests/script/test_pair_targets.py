"""Targets of a loss over the features of all ranks, with and without the rank."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read

SCRIPT = """
import torch
import torch.distributed as dist
import torch.nn.functional as F

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
criterion = torch.nn.CrossEntropyLoss()
for images, texts in loader:
    left, right = model(images, texts)
    {gather}
    {targets}
    {loss}
    loss.backward()
"""
GATHER = "every = torch.cat(torch.distributed.nn.functional.all_gather(right))"
INTO = """parts = [right.clone() for _ in range(world)]
    dist.all_gather(parts, right)
    every = torch.cat(parts)"""
BY_CRITERION = """logits = scale * torch.matmul(left, every.T)
    loss = criterion(logits, targets)"""
TARGETS = "targets = torch.arange(left.size(0))"
LOSS = "loss = F.cross_entropy(left @ every.t() / 0.07, targets)"
WHOLE = LOSS.replace("left @", "whole @")


def source(targets: str = TARGETS, gather: str = GATHER, loss: str = LOSS) -> str:
    return SCRIPT.format(gather=gather, targets=targets, loss=loss)


@pytest.mark.parametrize(
    "text",
    [
        source(),
        source("targets = torch.arange(len(images), device=left.device).long()"),
        source(gather="every = Gather.apply(right)"),
        source(gather=INTO),
        source(loss=BY_CRITERION),
        source("pass", loss=LOSS.replace("targets)", "torch.arange(len(left)))")),
    ],
)
def test_without_the_rank(script: Read, text: str) -> None:
    (one,) = script(text).pairs_of_rank0
    assert "arange" in one.targets.text
    assert one.at.text.startswith("loss = ")


@pytest.mark.parametrize(
    "text",
    [
        source("targets = torch.arange(left.size(0)) + rank * left.size(0)"),
        source("begin = rank * len(left)\n    targets = torch.arange(begin, begin + len(left))"),
        source(f"{TARGETS}\n    targets += rank * left.size(0)"),
        source("targets = torch.arange(left.size(0)) + offset(dist.get_rank())"),
        source("targets = torch.arange(every.size(0))"),
        # The features of all ranks on both sides.
        source(gather=GATHER + "\n    whole = gather(left)", loss=WHOLE),
        # Of this rank alone.
        source(loss=LOSS.replace("every", "right")),
        source("targets = labels"),
    ],
)
def test_other_targets(script: Read, text: str) -> None:
    assert script(text).pairs_of_rank0 == ()
