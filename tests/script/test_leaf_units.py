"""Single layers that FSDP wraps one by one."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read

SCRIPT = """
from functools import partial
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, transformer_auto_wrap_policy

model = Net()
{wraps}
"""
LOOP = "for one in model.modules():\n    if isinstance(one, {layers}):\n        fully_shard(one)"
POLICY = "model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({layers}))"
PARTIAL = "policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={layers})"
PAIRS = LOOP.replace("for one in model.modules", "for name, one in model.named_modules")


@pytest.mark.parametrize("wraps", [LOOP, POLICY, PARTIAL, PAIRS])
@pytest.mark.parametrize("layers", ["(nn.Linear, nn.LayerNorm)", "{torch.nn.Linear}"])
def test_each_layer_is_a_unit(script: Read, wraps: str, layers: str) -> None:
    (at,) = script(SCRIPT.format(wraps=wraps.format(layers=layers))).leaf_units
    assert at.text == wraps.format(layers=layers).rpartition("\n")[2].strip()


@pytest.mark.parametrize(
    "wraps",
    [
        LOOP.format(layers="Block"),
        LOOP.format(layers="(nn.Linear, Block)"),
        LOOP.format(layers="nn.TransformerEncoderLayer"),
        POLICY.format(layers="{Block}"),
        POLICY.format(layers="blocks"),
        PARTIAL.format(layers="{nn.TransformerEncoderLayer}"),
        # Only large ones, or the blocks of a list.
        LOOP.format(layers="nn.Linear").replace("        f", "        if big(one):\n            f"),
        "for one in model.layers:\n    fully_shard(one)",
        "for one in model.modules():\n    fully_shard(one)",
        LOOP.format(layers="nn.Linear").replace("fully_shard(one)", "nn.init.zeros_(one.bias)"),
    ],
)
def test_quiet(script: Read, wraps: str) -> None:
    assert script(SCRIPT.format(wraps=wraps)).leaf_units == ()
