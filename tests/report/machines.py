"""Machines to report on: a node of 8 H100s, sound or sick, and what probes would measure on it.

The all-reduce follows the published curve of 8×H100; everything else is made up.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddoctor.evidence.gpus import Gpu, GpuProcess, Gpus, NvLink, PcieLink
from ddoctor.evidence.host import Cpus, Disk, Disks, Kernel, Memory, SharedMemory
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
from ddoctor.evidence.section import Section, Unseen
from ddoctor.evidence.software import Environment, Software, Torch, Variable

GIB = 2**30
MODEL = "NVIDIA H100 80GB HBM3"
HOSTILE = '<script>alert("x")</script>'
CURVE = ((16, 2.7), (20, 44.0), (23, 172.0), (25, 296.0), (27, 401.0), (29, 438.0), (30, 466.0))
"""Power of two of the message, GB/s of bus bandwidth (8×H100, Azure AI benchmarking guide)."""


def gpu(index: int, *, sick: bool = False, power_limit: float = 700.0, process: str = "") -> Gpu:
    return Gpu(
        index=index,
        uuid=f"GPU-0000000{index}",
        name=MODEL,
        bus_id=f"0000:{0x18 + index * 8:02x}:00.0",
        capability=(9, 0),
        memory_total=80 * GIB,
        memory_used=(31 if process else 1) * GIB,
        processes=(
            (GpuProcess(pid=4242, memory=30 * GIB, name=process, user="mallory", holder="foreign"),)
            if process
            else ()
        ),
        utilisation=0,
        sm_clock=1095 if sick else 1980,
        sm_clock_maximum=1980,
        memory_clock=2619,
        memory_clock_maximum=2619,
        throttle_reasons=("hw_thermal_slowdown",) if sick else (),
        power=410.0 if sick else 121.0 + index,
        power_limit=power_limit,
        power_default=700.0,
        temperature=88 if sick else 38 + index % 3,
        temperature_slowdown=87,
        ecc_enabled=True,
        ecc_uncorrected_volatile=0,
        ecc_uncorrected_aggregate=0,
        pcie=PcieLink(generation=5, width=16, maximum_generation=5, maximum_width=16, replays=0),
        nvlinks=tuple(
            NvLink(index=link, active=not (sick and link < 2), remote="switch")
            for link in range(18)
        ),
        fabric_state="completed",
        mig=False,
        persistence=True,
        numa_node=index // 4,
    )


def host(name: str, *, sick: bool) -> tuple[Section, ...]:
    return (
        Cpus(
            host=name,
            model="Intel(R) Xeon(R) Platinum 8480C",
            logical=192,
            allowed=tuple(range(192)),
            load=(3.1, 2.8, 2.2),
        ),
        Memory(host=name, total=2016 * GIB, available=1980 * GIB),
        SharedMemory(host=name, filesystem="tmpfs", size=64 * GIB, free=64 * GIB),
        Disks(
            host=name,
            disks=(
                Disk(
                    roles=("working folder",),
                    path="/home/user/train",
                    device="/dev/nvme0n1p2",
                    filesystem="ext4",
                    size=1800 * GIB,
                    free=900 * GIB,
                ),
            ),
        ),
        Kernel(
            host=name,
            release="6.8.0-45-generic",
            container="docker",
            command_line="iommu=pt",
            unseen=(Unseen(what="ACS of PCIe bridges", why="needs root"),),
        ),
        Software(
            host=name,
            python="3.12.3",
            torch=Torch(version="2.9.1+cu128", cuda="12.8", nccl="2.27.5"),
        ),
        Environment(
            host=name,
            variables=(
                Variable(name="NCCL_DEBUG", value="INFO"),
                Variable(name="NCCL_SOCKET_IFNAMES", value="eth0"),
            ),
        ),
        Gpus(
            host=name,
            driver="570.86.15",
            cuda=(12, 8),
            gpus=tuple(
                gpu(
                    index,
                    sick=sick and index == 3,
                    power_limit=500.0 if sick and index == 6 else 700.0,
                    process=HOSTILE if sick and index == 5 else "",
                )
                for index in range(8)
            ),
        ),
    )


def places(*hosts: str) -> tuple[RankPlace, ...]:
    return tuple(
        RankPlace(rank=8 * node + local, host=name, device=f"cuda:{local}", device_name=MODEL)
        for node, name in enumerate(hosts)
        for local in range(8)
    )


def rates(spots: Iterable[RankPlace], rate: float, slow: float) -> tuple[RankRate, ...]:
    """One rate per rank, a little apart; rank 3 has the slow one."""
    return tuple(
        RankRate(
            place=spot,
            rate=slow if spot.rank == 3 else rate * (1 + 0.004 * (spot.rank % 4 - 1.5)),
            spread=rate * 0.005,
        )
        for spot in spots
    )


def measured(*hosts: str, sick: bool) -> tuple[Section, ...]:
    """What the probes measured; without bounds to one host, so the host is empty."""
    spots = places(*hosts)
    share = 0.62 if sick else 1.0
    return (
        AllReduce(
            backend="nccl",
            ranks=spots,
            points=tuple(
                SweepPoint(
                    bytes=2**power,
                    rounds=20,
                    p50=2**power * 1.75 / (busbw * share * 1e9),
                    p99=2**power * 1.9 / (busbw * share * 1e9),
                    minimum=2**power * 1.7 / (busbw * share * 1e9),
                    bus_bandwidth=busbw * share,
                )
                for power, busbw in CURVE
            ),
            algorithm="nvls",
            transport="P2P/CUMEM",
            nccl="2.27.5",
        ),
        Matmul(dtype="bfloat16", size=8192, rates=rates(spots, 712.0, 405.0 if sick else 712.0)),
        MemoryBandwidth(rates=rates(spots, 2950.0, 2940.0)),
        HostToDevice(to_device=rates(spots, 55.1, 54.9), to_host=rates(spots, 54.2, 54.4)),
        StorageRead(
            path="/home/user/train",
            filesystem="ext4",
            sequential=2310.0,
            sequential_bytes=GIB,
            small_files=18400.0,
            small_file_count=2000,
            small_file_bytes=65536,
            cold=True,
        ),
        ProbeRuns(
            runs=tuple(
                ProbeRun(probe=probe, outcome="completed", seconds=4.2)
                for probe in ("allreduce", "matmul", "memory_bandwidth", "host_to_device")
            ),
            backend="nccl",
            world_size=len(spots),
        ),
    )
