"""The lines that a sweep has in the head of a report."""

from __future__ import annotations

import msgspec

from ddoctor.evidence.memory_headroom import MemoryHeadroom
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Evidence
from ddoctor.report import facts
from tests.headroom.sample import swept


def rows(section: MemoryHeadroom) -> list[tuple[str, str]]:
    return [(fact.label, fact.text) for fact in facts.facts(Evidence([section]))]


def test_how_many_fit_and_what_each_rank_has_left() -> None:
    assert rows(swept(4, limits=(24.0, 20.0), unused=0.5)) == [
        ("workload", "train:work"),
        (
            "micro-batch",
            "23 at most, 24 do not fit rank 1; 21 leave 5%; now 4; 4 sizes tried",
        ),
        (
            "memory",
            "cuda:0: 24 GiB of 24.5 GiB; 8 GiB fixed and 512 MiB a sample; with 4 10.5 GiB taken, "
            "512 MiB of it in pieces, 13.5 GiB left",
        ),
        (
            "memory",
            "cuda:1: 20 GiB of 20.5 GiB; 8 GiB fixed and 512 MiB a sample; with 4 10.5 GiB taken, "
            "512 MiB of it in pieces, 9.5 GiB left",
        ),
        ("throughput", "57.1 samples/s with 4, 135 samples/s with 21"),
    ]


def test_where_nothing_fits() -> None:
    told = dict(rows(swept(4, fixed=30.0)))
    assert told["micro-batch"] == "not one sample fits; now 4"
    assert "throughput" not in told


def test_where_it_was_stopped_before_the_end() -> None:
    section = msgspec.structs.replace(
        swept(4, played=True), too_large=None, stopped="host-memory", foretold=90
    )
    told = dict(rows(section))
    assert told["workload"] == "train:work, on CPU tensors"
    assert told["micro-batch"].startswith(
        "32 fit; the host has no more memory to play with, 90 are foretold; 29 leave 5%"
    )


def test_of_many_ranks_the_one_that_decides() -> None:
    places = [RankPlace(rank=rank, host="a", device=f"cuda:{rank}") for rank in range(8)]
    limits = (24.0, 24.0, 24.0, 16.0, 24.0, 24.0, 24.0, 24.0)
    told = rows(swept(4, limits=limits, places=places))
    (memory,) = (text for label, text in told if label == "memory")
    assert memory.startswith("cuda:3: 16 GiB")
