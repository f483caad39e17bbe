"""A loader as most training scripts have it, to be changed by what a test is about."""

from __future__ import annotations

import msgspec

from ddoctor.evidence.loading import Loader

USUAL = Loader(
    rank=0,
    host="node-0",
    name="train.py:42",
    dataset="Pictures",
    kind="map",
    items=64_000,
    batch_size=32,
    batches=2000,
    num_workers=2,
    prefetch_factor=2,
    pin_memory=False,
    persistent_workers=False,
    context="fork",
    sampler="DistributedSampler",
)


def loader_with(**more: object) -> Loader:
    """The usual loader, but for this."""
    return msgspec.structs.replace(USUAL, **more)
