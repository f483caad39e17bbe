"""Ways to train a model, each as ``footprint`` and ``truth.peak`` take it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ddoctor.forecast.model.sharding import Sharding

HALF = torch.bfloat16
AdamW = partial(torch.optim.AdamW, lr=1e-4)
SPREAD = Sharding(ranks=2)
WAYS: Mapping[str, Mapping[str, Any]] = {
    "recomputed": {"checkpointing": "every"},
    "recomputed in part": {"checkpointing": "selective"},
    "every second product recomputed": {"checkpointing": "selective:op"},
    "every second block recomputed": {"checkpointing": "selective:2"},
    "fsdp": {"sharding": SPREAD},
    "fsdp, parameters kept": {"sharding": Sharding(ranks=2, keeps_parameters=True)},
    "fsdp within hosts": {"sharding": Sharding(ranks=4, within=2)},
    "fsdp over eight": {"sharding": Sharding(ranks=8)},
    "fsdp in halves": {"sharding": Sharding(ranks=2, computing=HALF), "autocast": HALF},
    "fsdp, recomputed": {"sharding": SPREAD, "checkpointing": "every"},
    "accumulated": {"accumulation": 2},
}
# FSDP casts the weights of a batch norm, and not what it knows of the batches before; torch's batch
# norm on CPUs takes no such pair.
FAILS = {("fsdp in halves", name) for name in ("cnn with batch norm", "narrow blocks")}
