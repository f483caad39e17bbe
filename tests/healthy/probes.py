"""What the probes measure on 8 sound H100s, by the published figures."""

from __future__ import annotations

from ddoctor.evidence.probes import (
    AllReduce,
    HostToDevice,
    Matmul,
    MemoryBandwidth,
    ProbeRun,
    ProbeRuns,
    RankPlace,
    RankRate,
    StorageRead,
    SweepPoint,
)
from tests.healthy.gpus import GPUS
from tests.healthy.host import HOST

PLACES = tuple(
    RankPlace(
        rank=gpu.index,
        host=HOST,
        device=f"cuda:{gpu.index}",
        device_name=gpu.name,
        bus_id=gpu.bus_id,
    )
    for gpu in GPUS
)

# Azure's AI-benchmarking-guide, 8×H100.
CURVE = {
    2**16: 2.7,
    2**20: 44.0,
    2**23: 172.0,
    2**25: 296.0,
    2**27: 401.0,
    2**29: 438.0,
    2**30: 466.0,
    2**33: 479.0,
}

# The spread of a healthy node: up to 5 %.
UNEVEN = (1.0, 0.99, 1.01, 0.97, 1.0, 1.02, 0.98, 1.0)


def sweep(curve: dict[int, float], ranks: int = 8) -> tuple[SweepPoint, ...]:
    """The points of a sweep that shows these bus bandwidths (GB/s by bytes)."""
    points = []
    for size, bandwidth in curve.items():
        seconds = size * 2 * (ranks - 1) / ranks / bandwidth / 1e9
        points.append(
            SweepPoint(
                bytes=size,
                rounds=20,
                p50=seconds,
                p99=seconds * 1.1,
                minimum=seconds * 0.97,
                bus_bandwidth=bandwidth,
            )
        )
    return tuple(points)


def rates(usual: float) -> tuple[RankRate, ...]:
    """Rates of 8 equal GPUs around ``usual``."""
    return tuple(
        RankRate(place=place, rate=usual * factor, spread=usual * 0.01)
        for place, factor in zip(PLACES, UNEVEN, strict=True)
    )


SECTIONS = (
    AllReduce(
        host=HOST,
        backend="nccl",
        ranks=PLACES,
        points=sweep(CURVE),
        algorithm="nvls",
        transport="P2P/CUMEM",
        nccl="2.27.3",
    ),
    Matmul(host=HOST, dtype="bfloat16", size=8192, rates=rates(720.0)),
    MemoryBandwidth(host=HOST, rates=rates(2970.0)),
    HostToDevice(host=HOST, to_device=rates(55.0), to_host=rates(54.0)),
    StorageRead(
        host=HOST,
        path="/data",
        filesystem="xfs",
        sequential=5200.0,
        sequential_bytes=2**30,
        small_files=4100.0,
        small_file_count=500,
        small_file_bytes=500 * 110_000,
        cold=True,
    ),
    ProbeRuns(
        host=HOST,
        runs=tuple(
            ProbeRun(probe=probe, outcome="completed", seconds=3.0)
            for probe in (
                "allreduce",
                "host_to_device",
                "matmul",
                "memory_bandwidth",
                "storage_read",
            )
        ),
        backend="nccl",
        world_size=8,
    ),
)
