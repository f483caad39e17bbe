"""A sound host with 2×48 cores and 2 TiB, not in a container, its clock kept."""

from __future__ import annotations

from ddoctor.evidence.host import (
    Clock,
    Cpus,
    Disk,
    Disks,
    Kernel,
    Limit,
    Limits,
    Memory,
    NumaNode,
    SharedMemory,
)

HOST = "node-1"
GIB = 2**30
TIB = 2**40

SECTIONS = (
    Cpus(
        host=HOST,
        model="Intel(R) Xeon(R) Platinum 8468",
        logical=192,
        allowed=tuple(range(192)),
        cpuset=tuple(range(192)),
        numa=(
            NumaNode(index=0, cpus=(*range(48), *range(96, 144)), memory=TIB),
            NumaNode(index=1, cpus=(*range(48, 96), *range(144, 192)), memory=TIB),
        ),
        load=(1.2, 0.9, 0.7),
    ),
    Memory(host=HOST, total=2 * TIB, available=1960 * GIB),
    SharedMemory(host=HOST, filesystem="tmpfs", size=1024 * GIB, free=1020 * GIB),
    Limits(
        host=HOST,
        open_files=Limit(soft=65536, hard=524288),
        locked_memory=Limit(soft=None, hard=None),
        processes=Limit(soft=8254334, hard=8254334),
        locks_without_limit=False,
    ),
    Disks(
        host=HOST,
        disks=(
            Disk(
                roles=("working folder", "Hugging Face cache"),
                path="/data/run",
                mount="/data",
                device="/dev/nvme0n1p1",
                filesystem="xfs",
                size=14 * TIB,
                free=9 * TIB,
                used=5 * TIB,
                files=1_500_000_000,
                files_free=1_490_000_000,
            ),
            Disk(
                roles=("temporary folder",),
                path="/tmp",
                mount="/",
                device="/dev/nvme1n1p2",
                filesystem="ext4",
                size=1800 * GIB,
                free=1500 * GIB,
                used=208 * GIB,
                files=120_000_000,
                files_free=119_000_000,
            ),
        ),
    ),
    Clock(
        host=HOST,
        synchronised=True,
        estimated_error=0.000_02,
        maximum_error=0.004,
        service="chronyd",
    ),
    Kernel(
        host=HOST,
        release="6.8.0-60-generic",
        command_line="iommu=pt",
        iommu_groups=210,
        iommu_passthrough=True,
        acs_redirecting=(),
    ),
)
