"""A training as people write it with accelerate; on CPUs, it tells what was made of its model."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState  # type: ignore[import-untyped]
from accelerate.utils import DistributedType  # type: ignore[import-untyped]
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

config, told = sys.argv[1:]
state = PartialState(cpu=True)
if os.environ.get("ACCELERATE_USE_FSDP") == "true":
    # accelerate shards only where it finds GPUs; what it does then, it does on CPUs as well.
    state.distributed_type = DistributedType.MULTI_GPU
accelerator = Accelerator()
plugin: Any = getattr(accelerator.state, "fsdp_plugin", None)
offloaded = isinstance(getattr(plugin, "cpu_offload", None), CPUOffloadPolicy)
if offloaded:
    # Pages are pinned for a GPU: without one, torch refuses to.
    plugin.cpu_offload = CPUOffloadPolicy(pin_memory=False)
torch.manual_seed(accelerator.process_index)
model = LlamaForCausalLM(LlamaConfig.from_pretrained(config))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = accelerator.prepare(model, optimizer)
tokens = torch.arange(128).reshape(2, 64)
units: list[Any] = [one for one in model.modules() if isinstance(one, FSDPModule)]
losses, gathered = [], set()
for _ in range(2):
    loss = model(input_ids=tokens, labels=tokens).loss
    gathered = {
        type(one).__name__ for one in units if not isinstance(next(one.parameters()), DTensor)
    }
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())

shapes = {tuple(one.device_mesh.shape) for one in model.parameters() if isinstance(one, DTensor)}
seen = {
    "ranks": accelerator.num_processes,
    "precision": accelerator.mixed_precision,
    "model": type(model).__name__,
    "units": sorted(type(one).__name__ for one in units),
    "gathered after forward": sorted(gathered),
    "meshes": sorted(shapes),
    "offloaded": offloaded,
    "losses": losses,
}
Path(told, f"{accelerator.process_index}.json").write_text(json.dumps(seen))
accelerator.end_training()
