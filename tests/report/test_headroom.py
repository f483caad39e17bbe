"""The lines that a sweep has in the head of a report."""

from __future__ import annotations

import msgspec

from ddoctor.evidence.memory_headroom import Longest, MemoryHeadroom, MemoryTrial
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Evidence
from ddoctor.report import facts
from tests.memory_sweep.sample import swept


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
        "32 fit; the host has no more memory to simulate with, 90 forecast; 29 leave 5%"
    )


def test_of_many_ranks_the_one_that_decides() -> None:
    places = [RankPlace(rank=rank, host="a", device=f"cuda:{rank}") for rank in range(8)]
    limits = (24.0, 24.0, 24.0, 16.0, 24.0, 24.0, 24.0, 24.0)
    told = rows(swept(4, limits=limits, places=places))
    (memory,) = (text for label, text in told if label == "memory")
    assert memory.startswith("cuda:3: 16 GiB")


def test_sharded_and_how_long_samples_can_be() -> None:
    longest = Longest(samples=4, current=2048, tokens=5120, too_long=5121)
    told = dict(rows(msgspec.structs.replace(swept(4), sharded=True, longest=longest)))
    assert told["workload"] == "train:work, by FSDP"
    assert told["sequence"] == "5120 tokens at most with 4 samples, 5121 do not fit; now 2048"


def test_no_length_was_too_long() -> None:
    longest = Longest(samples=1, current=64, tokens=4096, stopped="host-memory")
    told = dict(rows(msgspec.structs.replace(swept(4), longest=longest)))
    assert told["sequence"] == (
        "4096 tokens fit with one sample; the host has no more memory to simulate with; now 64"
    )


def test_a_size_far_above_is_no_next_one() -> None:
    far = MemoryTrial(micro_batch=135, outcome="out-of-memory", ranks=(0,))
    told = dict(rows(msgspec.structs.replace(swept(4), largest=16, too_large=135, trials=(far,))))
    assert told["micro-batch"].startswith("16 fit, 135 do not fit rank 0; ")
