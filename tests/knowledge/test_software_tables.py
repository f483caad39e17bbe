"""The tables of versions weighed for sense."""

from __future__ import annotations

from itertools import pairwise

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ddoctor import knowledge
from ddoctor.evidence.known_software import Combinations, CudaBuilds

KNOWN = knowledge.load(Combinations)
COMBINATIONS = KNOWN.combinations
CUDA = knowledge.load(CudaBuilds)


def test_combinations_are_of_what_is_collected() -> None:
    for row in COMBINATIONS:
        assert set(row.versions) <= {*KNOWN.packages, "torch", "nccl"}
        for versions in row.versions.values():
            assert SpecifierSet(versions)


def test_combinations_say_where_they_were_reported() -> None:
    for row in COMBINATIONS:
        assert row.source.startswith("https://")
        assert row.upgrade.startswith("pip install")
        assert not row.breaks.endswith(".")


def test_a_newer_cuda_needs_a_newer_driver() -> None:
    rows = sorted(CUDA.majors, key=lambda row: row.major)
    for older, newer in pairwise(rows):
        assert Version(older.minimum_driver) < Version(newer.minimum_driver)


def test_builds_are_named_after_their_cuda() -> None:
    for build in CUDA.builds:
        assert build.tag == f"cu{build.cuda[0]}{build.cuda[1]}"
        assert build.capabilities[0] < build.capabilities[1]
        assert CUDA.minimum_driver(build.cuda[0]) is not None


@pytest.mark.parametrize(
    ("driver", "major"),
    [("440.33", None), ("470.57.02", 11), ("525.60.13", 12), ("570.86.15", 12), ("580.65.06", 13)],
)
def test_the_newest_cuda_of_a_driver(driver: str, major: int | None) -> None:
    assert CUDA.newest_major(driver) == major


@pytest.mark.parametrize("capability", [(7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0)])
def test_a_build_exists_for_each_gpu_on_the_newest_driver(capability: tuple[int, int]) -> None:
    assert CUDA.build_for(13, capability) is not None
