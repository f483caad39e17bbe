"""Traces of eight ranks that hide nearly all of their communication."""

from __future__ import annotations

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.trace import RankTrace, SyncCall, Traces

SECTIONS = (
    Traces(
        files=tuple(f"rank{rank}.pt.trace.json.gz" for rank in range(8)),
        world=8,
        steps=60,
        ranks=tuple(
            RankTrace(
                rank=rank,
                workers=True,
                kernels=40_000,
                late_launch_seconds=0.05,
                syncs=(
                    SyncCall(
                        operator="aten::item",
                        call="cudaStreamSynchronize",
                        line=Frame(file="train.py", line=40, function="main", of_user=True),
                        calls=40,
                        blocked_seconds=3.0,
                        idle_seconds=0.02,
                    ),
                ),
                pageable_copies=40,
                pageable_bytes=40_000,
                pageable_seconds=0.001,
                small_collectives=40,
                small_bytes=160,
                small_seconds=0.001,
            )
            for rank in range(8)
        ),
    ),
)
