"""Features of all ranks in a loss, with and without the gradients that lead back to them."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read

SCRIPT = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(net())
optimizer = torch.optim.AdamW(model.parameters())
{head}
for images, texts in loader:
    optimizer.zero_grad()
    features = F.normalize(model(images), dim=1)
    others = [torch.zeros_like(features) for _ in range(world)]
    {gather}
    {loss}
    loss.backward()
    optimizer.step()
"""
GATHER = "dist.all_gather(others, features)"
LOSS = """every = torch.cat(others)
    logits = features @ every.t() / 0.07
    loss = F.cross_entropy(logits, labels)"""
HELPER = """
def gather(tensor):
    parts = [torch.zeros_like(tensor) for _ in range(world)]
    dist.all_gather(parts, tensor)
    {back}
    return torch.cat(parts)
"""
BY_HELPER = """every = gather(features)
    loss = F.cross_entropy(features @ every.t(), labels)"""
OPERATION = """
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(context, tensor):
        parts = [torch.zeros_like(tensor) for _ in range(world)]
        dist.all_gather(parts, tensor)
        return torch.stack(parts)
    @staticmethod
    def backward(context, gradient):
        dist.all_reduce(gradient)
        return gradient[dist.get_rank()]
"""


def source(gather: str = GATHER, loss: str = LOSS, head: str = "") -> str:
    return SCRIPT.format(gather=gather, loss=loss, head=head)


MODULE = """
import lightning as L
import torch.nn.functional as F

class Contrast(L.LightningModule):
    def training_step(self, batch, index):
        features = self.model(batch)
        every = self.all_gather(features{syncs}).flatten(0, 1)
        loss = F.cross_entropy(features @ every.t(), self.labels)
        return loss
"""


@pytest.mark.parametrize(
    ("text", "at", "similar"),
    [
        (source(), GATHER, "logits = features @ every.t() / 0.07"),
        (
            source(
                "whole = zeros(64, 8)\n    dist.all_gather_into_tensor(whole, features)",
                "loss = F.cross_entropy(torch.mm(features, whole.t()), labels)",
            ),
            "dist.all_gather_into_tensor(whole, features)",
            "loss = F.cross_entropy(torch.mm(features, whole.t()), labels)",
        ),
        (
            source("pass", BY_HELPER, HELPER.format(back="pass")),
            "dist.all_gather(parts, tensor)",
            "loss = F.cross_entropy(features @ every.t(), labels)",
        ),
        (
            MODULE.format(syncs=""),
            "every = self.all_gather(features).flatten(0, 1)",
            "loss = F.cross_entropy(features @ every.t(), self.labels)",
        ),
    ],
)
def test_constants(script: Read, text: str, at: str, similar: str) -> None:
    (found,) = script(text).gathered
    assert (found.at.text, found.similar.text) == (at, similar)


@pytest.mark.parametrize(
    "text",
    [
        # The rank's own features are put back, or joined to those of the others.
        source(f"{GATHER}; others[rank] = features"),
        source(loss=LOSS.replace("torch.cat(others)", "torch.cat([features, *others[1:]])")),
        source("pass", BY_HELPER, HELPER.format(back="parts[rank] = tensor")),
        # An operation of its own, or torch's.
        source("pass", BY_HELPER.replace("gather(", "Gather.apply("), OPERATION),
        source("others = torch.distributed.nn.functional.all_gather(features)"),
        MODULE.format(syncs=", sync_grads=True"),
        # What has no gradient on purpose.
        source(f"{GATHER.replace('features', 'features.detach()')}"),
        source(
            "keys = momentum(images); dist.all_gather(others, keys)",
            LOSS,
        ),
        # Values for the log, and an evaluation.
        source(loss="loss = F.cross_entropy(features, labels); print(torch.stack(others).mean())"),
        source(
            "pass",
            "loss = F.cross_entropy(features, labels)",
            f"""
def evaluate():
    with torch.no_grad():
        features = model(images)
        {GATHER}
        {LOSS.replace(chr(10) + "    ", chr(10) + "        ")}
    return loss
""",
        ),
    ],
)
def test_quiet(script: Read, text: str) -> None:
    assert script(text).gathered == ()
