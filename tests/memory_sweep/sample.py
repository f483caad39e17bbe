"""Sweeps as the probe tells them, of devices of some GiB and lines that are exact."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

from ddoctor.evidence.memory_headroom import (
    MARGIN,
    MemoryHeadroom,
    MemoryTrial,
    RankHeadroom,
    SampleUse,
    StepRate,
)
from ddoctor.evidence.probes import RankPlace

GIB = 2**30
PLACES = tuple(RankPlace(rank=rank, host="a", device=f"cuda:{rank}") for rank in range(2))


def swept(
    current: int | None,
    *,
    fixed: float = 8.0,
    each: float = 0.5,
    limits: Sequence[float] = (24.0, 24.0),
    step: float = 0.1,
    sample: float = 0.01,
    played: bool = False,
    unused: float = 0.0,
    places: Sequence[RankPlace] = PLACES,
    host: str = "",
) -> MemoryHeadroom:
    """Memory in GiB, ``unused`` of what is reserved; a step takes ``step`` and ``sample`` seconds
    for each of its samples."""
    fits = [max(0, floor((limit - unused - fixed) / each)) for limit in limits]
    spared = [floor((limit * (1 - MARGIN) - unused - fixed) / each) for limit in limits]
    largest, safe = min(fits), max(0, min(spared))
    sizes = sorted({current or 1, safe, largest} - {0})
    sizes = [size for size in sizes if size <= largest]
    beyond = largest + 1
    short = tuple(rank for rank, number in enumerate(fits) if number < beyond)
    return MemoryHeadroom(
        host=host,
        workload="train:work",
        played=played,
        current=current,
        largest=largest,
        safe=safe,
        too_large=beyond,
        trials=(
            *(MemoryTrial(micro_batch=size, outcome="fits") for size in sizes),
            MemoryTrial(micro_batch=beyond, outcome="out-of-memory", ranks=short),
        ),
        ranks=tuple(
            RankHeadroom(
                place=place,
                total=round((limit + 0.5) * GIB),
                others=GIB // 2,
                limit=round(limit * GIB),
                parameters=round(fixed / 4 * GIB),
                fixed=round(fixed * GIB),
                per_sample=round(each * GIB),
                uses=tuple(
                    SampleUse(
                        micro_batch=size,
                        allocated=round((fixed + each * size) * GIB),
                        reserved=round((fixed + each * size + unused) * GIB),
                    )
                    for size in sizes
                ),
            )
            for place, limit in zip(places, limits, strict=True)
        ),
        rates=tuple(
            StepRate(micro_batch=size, seconds=step + sample * size)
            for size in sizes
            if size in (current, safe or largest)
        ),
    )
