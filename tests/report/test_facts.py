from __future__ import annotations

from msgspec.structs import replace

from ddoctor.evidence.cluster_probes import (
    ClockOffset,
    ClockOffsets,
    Collectives,
    InterfaceRate,
    InterfaceRates,
    Sweep,
)
from ddoctor.evidence.host import Cpus
from ddoctor.evidence.probes import Matmul, RankRate, SweepPoint
from ddoctor.evidence.section import Evidence
from ddoctor.report.facts import facts
from ddoctor.report.ranks import comparisons
from tests.healthy import healthy as whole_machine
from tests.report import machines, sample


def told(evidence: Evidence) -> dict[str, str]:
    return {fact.label: fact.text for fact in facts(evidence)}


def test_a_slow_rank_is_named() -> None:
    _, evidence = sample.sick()
    assert told(evidence)["matmul"].endswith("(405 to 716), slowest cuda:3")
    assert told(evidence)["matmul"].startswith("711 TFLOP/s bfloat16 (published: 795), median of 8")


def test_none_is_named_where_all_are_alike() -> None:
    _, evidence = sample.healthy()
    assert all("slowest" not in text for text in told(evidence).values())


def test_ten_percent_below_the_median_is_where_a_rank_stands_apart() -> None:
    def text(slow: float) -> str:
        rates = tuple(
            RankRate(place=place, rate=slow if place.rank == 3 else 100.0)
            for place in machines.places("a")
        )
        (comparison,) = comparisons(Evidence((Matmul(dtype="f", size=1, rates=rates),)))
        return str(comparison)

    assert "slowest" not in text(91.0)
    assert text(89.0).endswith("slowest cuda:3")


def test_hosts_that_agree_share_a_line() -> None:
    _, evidence = sample.two_hosts()
    assert told(evidence)["hosts"] == "node-1, node-2"
    assert "node" not in told(evidence)["CPUs"]


def test_hosts_that_differ_are_told_apart() -> None:
    _, evidence = sample.two_hosts()
    first = evidence.of(Cpus, "node-1")
    assert first is not None
    lines = [
        fact.text
        for fact in facts(evidence.with_sections(replace(first, quota=4.0)))
        if fact.label == "CPUs"
    ]
    assert len(lines) == 2
    assert lines[0].startswith("4 usable of 192 (quota 4)")
    assert lines[0].endswith("(node-1)")
    assert lines[1].endswith("(node-2)")


def test_absent_gpus_are_told_with_the_reason() -> None:
    _, evidence = sample.incomplete()
    assert told(evidence)["GPUs"] == "none: no NVIDIA driver on this machine"


def test_nothing_is_told_of_nothing() -> None:
    assert facts(Evidence()) == ()


def test_the_interfaces_and_the_fabric_are_told() -> None:
    lines = told(whole_machine())
    assert lines["network"].startswith("NCCL uses eth0 (all but docker*, lo* and virbr*); gloo")
    assert lines["RDMA"] == "8 devices, active: 8 × 400 Gbit/s InfiniBand"


def test_what_was_measured_between_hosts_is_a_row_each() -> None:
    points = (point(2**20, 1.0), point(2**24, 3.0))
    sweeps = [
        Sweep(collective="all-gather", scope="within", host=host, ranks=(0, 1), points=points)
        for host in ("a", "b")
    ]
    sweeps.append(Sweep(collective="broadcast", scope="all", ranks=(0, 2), points=points[:1]))
    sweeps.append(Sweep(collective="all-to-all", scope="all", ranks=(0, 2), skipped="no"))
    rates = (
        InterfaceRate(interface="eth0", sender="a", receiver="b", rates=(0.01, 0.012)),
        InterfaceRate(interface="eth0", sender="b", receiver="a", rates=(0.02,)),
    )
    offsets = (
        ClockOffset(host="a", offset=0.0, uncertainty=0.0),
        ClockOffset(host="b", offset=-0.002, uncertainty=0.0005),
    )
    rows = told(
        Evidence(
            (
                Collectives(backend="gloo", ranks=(), sweeps=tuple(sweeps)),
                InterfaceRates(rates=rates),
                ClockOffsets(offsets=offsets),
            )
        )
    )
    assert rows["within hosts"] == "all-gather 3 GB/s busbw"
    assert rows["collectives"] == "broadcast 1 GB/s busbw"
    assert rows["plain TCP"] == "eth0 0.012 GB/s; slowest of 2 connections each"
    assert rows["clocks"] == "at most 2 ms apart (b to a), ± 0.5 ms"


def point(size: int, rate: float) -> SweepPoint:
    return SweepPoint(bytes=size, rounds=20, p50=1.0, p99=1.0, minimum=1.0, bus_bandwidth=rate)
