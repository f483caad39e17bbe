from __future__ import annotations

from msgspec.structs import replace

from ddoctor.evidence.probes import AllReduce, RankPlace, SweepPoint
from ddoctor.report import expectation
from tests.report import machines

MIB = 2**20


def sweep(*places: RankPlace, largest: int, algorithm: str | None = "nvls") -> AllReduce:
    points = tuple(
        SweepPoint(bytes=size, rounds=5, p50=1.0, p99=1.0, minimum=1.0, bus_bandwidth=100.0)
        for size in (MIB, largest)
    )
    return AllReduce(backend="nccl", ranks=places, points=points, algorithm=algorithm)


def test_a_published_curve_ends_at_the_largest_size_that_was_measured() -> None:
    healthy = expectation.all_reduce(sweep(*machines.places("a"), largest=512 * MIB))
    assert healthy is not None
    assert healthy.name == "8 × H100 SXM, nvls"
    assert healthy.points[-1] == (512 * MIB, 438.0)
    assert healthy.text == "about 438"
    assert healthy.source.startswith("https://")


def test_without_a_curve_the_published_range_is_told_where_it_is_due() -> None:
    places = machines.places("a")
    healthy = expectation.all_reduce(sweep(*places, largest=1024 * MIB, algorithm="ring"))
    assert healthy is not None
    assert healthy.text == "361 to 370"
    assert healthy.points == ((256 * MIB, 361.0), (1024 * MIB, 361.0))
    assert expectation.all_reduce(sweep(*places, largest=512 * MIB, algorithm="ring")) is None


def test_nothing_is_expected_of_what_no_table_knows() -> None:
    places = machines.places("a")
    strangers = [replace(place, device_name="NVIDIA X1") for place in places]
    cpus = [replace(place, device="cpu", device_name="") for place in places]
    mixed = [*places[:7], strangers[7]]
    for ranks in (strangers, cpus, mixed, places[:3], machines.places("a", "b")):
        assert expectation.all_reduce(sweep(*ranks, largest=1024 * MIB)) is None


def test_nothing_is_expected_of_nothing() -> None:
    empty = AllReduce(backend="nccl", ranks=machines.places("a"), points=())
    assert expectation.all_reduce(empty) is None
