"""Snapshots of two ranks, taken while they train."""

from __future__ import annotations

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.memory_snapshot import DeviceMemory, Holder, MemorySnapshots

GIB = 2**30
SECTIONS = (
    MemorySnapshots(
        files=("rank0.pickle", "rank1.pickle"),
        devices=tuple(
            DeviceMemory(
                rank=rank,
                file=f"rank{rank}.pickle",
                device=rank,
                reserved=40 * GIB,
                allocated=36 * GIB,
                usable=4 * GIB,
                largest_free=GIB,
                steps=20,
                holders=(
                    Holder(
                        kind="optimizer states",
                        line=Frame(file="train.py", line=44, function="step", of_user=True),
                        bytes=24 * GIB,
                        blocks=600,
                    ),
                    Holder(kind="gradients", bytes=12 * GIB, blocks=300),
                ),
            )
            for rank in range(2)
        ),
    ),
)
