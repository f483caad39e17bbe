from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.cluster import local_probes
from ddoctor.evidence.probes import StorageRead
from ddoctor.evidence.section import Evidence
from ddoctor.probing.world import FEWEST_ROUNDS, ROUNDS, bus_bandwidth, percentile


@pytest.mark.parametrize(("ranks", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75), (16, 1.875)])
def test_bus_bandwidth_is_that_of_nccl_tests(ranks: int, factor: float) -> None:
    """doc/PERFORMANCE.md: algorithm bandwidth times 2(n-1)/n."""
    assert bus_bandwidth(10**9, 1.0, ranks) == pytest.approx(factor)


def test_bus_bandwidth_of_a_published_run() -> None:
    """nccl-tests on 8 GPUs: 1 GiB in 4.03 ms is 466 GB/s."""
    assert bus_bandwidth(2**30, 4.03e-3, 8) == pytest.approx(466, rel=0.001)


def test_percentiles_are_values_that_were_seen() -> None:
    rounds = [float(n) for n in range(1, 21)]
    assert percentile(rounds, 50) == 10
    assert percentile(rounds, 99) == 20
    assert percentile([*range(1, 201)], 99) == 198
    assert percentile([7.0], 50) == 7.0


def test_ranks_agree_on_fewer_rounds_where_one_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent.parent))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    evidence = Evidence(local_probes.measure(["tests.faulty.unhurried"], limit=120, data=tmp_path))
    (section,) = evidence.all(StorageRead)
    assert section.path == "True True True True"
    assert FEWEST_ROUNDS <= section.small_file_count < ROUNDS
