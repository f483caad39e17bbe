"""What NCCL says of itself with NCCL_DEBUG=INFO, in the forms of several versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor import engine
from ddoctor.evidence.log import Log
from ddoctor.models import Report, Severity
from ddoctor.reading import reader
from ddoctor.reading.log_lines import FEW_ALIKE
from ddoctor.report import nccl

CAUSE = "rdma-not-used-tcp-fallback"
NODE = "node-{0}:4121:4290 [0] NCCL INFO "


def examined(folder: Path, *lines: str) -> tuple[Report, dict[str, str]]:
    (folder / "nccl.log").write_text("".join(f"{line}\n" for line in lines))
    evidence, _ = reader.read([folder / "nccl.log"])
    return engine.examine(evidence, "diagnose"), dict(nccl.choices(evidence))


def of(host: int, *texts: str) -> list[str]:
    return [NODE.format(host) + text for text in texts]


INFINIBAND = (
    "NCCL version 2.27.5+cuda12.9",
    "NET/Plugin: Loaded net plugin Libfabric (v10)",
    "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>",
    "Using network IB",
    "NVLS multicast support is available on dev 0",
    "Channel 00/16 : 0 1 2 3",
    "Channel 01/16 : 0 3 2 1",
    "Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/0/GDRDMA",
    "Channel 01/0 : 2[0] -> 0[0] [receive] via NET/IB/1(0)/GDRDMA",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    "Connected all rings",
    "Connected all trees",
    "16 coll channels, 16 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels "
    "per peer",
)


def test_what_a_fabric_is_used_for(tmp_path: Path) -> None:
    report, told = examined(tmp_path, *of(0, *INFINIBAND))
    assert told == {
        "NCCL": "2.27.5, built for CUDA 12.9, plug-in Libfabric",
        "its network": "IB, RDMA devices mlx5_0, mlx5_1",
        "its channels": "16 for collectives, NET/IB with GPUDirect RDMA, P2P/CUMEM, "
        "NVLS available, ring 0 1 2 3, all rings connected, all trees connected",
    }
    assert not report.findings


@pytest.mark.parametrize(
    ("line", "way"),
    [
        ("Channel 00 : 0[32000] -> 1[34000] via P2P/IPC/read", "P2P/IPC"),
        ("Channel 00/02 : 0[0] -> 1[1] via P2P/direct pointer", "P2P/direct pointer"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "SHM"),
        ("Channel 00 : 1[1] -> 8[0] [send] via NET/Socket/0", "NET/Socket"),
        (
            "Channel 03/0 : 8[0] -> 0[0] [receive] via NET/AWS Libfabric/0/GDRDMA",
            "NET/AWS Libfabric with GPUDirect RDMA",
        ),
        ("Channel 03/0 : 8[0] -> 0[0] [receive] via NET/IB/0/Shared", "NET/IB"),
    ],
)
def test_ways_between_gpus(tmp_path: Path, line: str, way: str) -> None:
    _, told = examined(tmp_path, *of(0, line))
    assert told == {"its channels": way}


def test_a_run_without_such_lines(tmp_path: Path) -> None:
    _, told = examined(tmp_path, "step 1: loss 0.3", "Channel 4 of 5 : via SHM", "NCCL version")
    assert told == {}


def test_many_ranks_say_it_once(tmp_path: Path) -> None:
    lines = [
        f"node-{rank // 8}:4{rank}:5{rank} [{rank % 8}] NCCL INFO Channel {channel:02}/0 : "
        f"{rank}[{rank % 8}] -> {(rank + 1) % 64}[{(rank + 1) % 8}] via P2P/CUMEM"
        for rank in range(64)
        for channel in range(24)
    ]
    (tmp_path / "nccl.log").write_text("\n".join(lines))
    evidence, _ = reader.read([tmp_path / "nccl.log"])
    (log,) = evidence.all(Log)
    assert sum(one.count for one in log.of("nccl-transport")) == FEW_ALIKE < 64 * 24
    assert dict(nccl.choices(evidence)) == {"its channels": "P2P/CUMEM"}


def test_one_host_uses_tcp_and_the_others_the_fabric(tmp_path: Path) -> None:
    lines = [*of(0, "Using network IB"), *of(1, "Using network Socket"), *of(2, "Using network IB")]
    report, told = examined(tmp_path, *lines)
    (finding,) = report.findings
    assert (finding.cause, finding.severity) == (CAUSE, Severity.WARNING)
    assert finding.where.hosts == ("node-1",)
    assert "IB on other hosts, and TCP on node-1" in finding.because
    assert told["its network"] == "IB (node-0, node-2), Socket (node-1)"


@pytest.mark.parametrize(
    "lines",
    [
        [*of(0, "Using network Socket"), *of(1, "Using network Socket")],
        [*of(0, "Using network IB"), *of(1, "Using network IB")],
        # A second communicator of each host is one of another library.
        [
            *of(0, "Using network IB", "Using network Socket"),
            *of(1, "Using network Socket"),
        ],
        ["NCCL INFO Using network IB", "NCCL INFO Using network Socket"],
    ],
)
def test_networks_that_may_well_be_meant(tmp_path: Path, lines: list[str]) -> None:
    report, _ = examined(tmp_path, *lines)
    assert not report.findings
