from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ddoctor.evidence.cluster_probes import Pairs
from ddoctor.evidence.section import Evidence
from ddoctor.probing import catalog
from ddoctor.probing.journal import Follower

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def section(evidence: Evidence) -> Pairs:
    (section,) = evidence.all(Pairs)
    return section


def test_both_directions_are_measured_on_their_own(section: Pairs) -> None:
    assert [(flow.sender, flow.receiver) for flow in section.flows] == [(0, 1), (1, 0)]
    for flow in section.flows:
        assert 2**16 <= flow.bytes <= 2**26
        assert len(flow.rates) >= 2
        assert all(rate > 0 for rate in flow.rates)


def test_every_rank_works_alone_as_often(section: Pairs) -> None:
    assert [row.place.rank for row in section.work] == [0, 1]
    for row in section.work:
        assert len(row.seconds) == len(row.cpu) == 5
        assert all(second > 0 for second in row.seconds)
        assert all(0 < share <= 1 for share in row.cpu)
        assert all(0 <= share <= 1 for share in row.queued)


def test_one_machine_is_examined_without_it_unless_it_is_named() -> None:
    assert "pairs" not in catalog.choose(None)
    assert "matmul" in catalog.choose(None)
    assert catalog.choose(["pairs"]) == ("pairs",)


@pytest.mark.ward
def test_with_rdma_each_rank_of_a_host_meets_its_own_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "--no-python"]
    worker = [
        sys.executable,
        "-m",
        "ddoctor.probing.worker",
        f"--folder={tmp_path}",
        f"--data={tmp_path}",
    ]
    whole = [sys.executable, *ranks, *worker, "tests.faulty.two_rails"]
    subprocess.run(whole, check=True, timeout=120, cwd=tmp_path, capture_output=True)
    *_, measured, _ = Follower(tmp_path, 0).new_lines()
    section = msgspec.json.decode(measured.section, type=Pairs)
    assert [(end.place.rank, end.rail) for end in section.ends] == [(0, 0), (2, 0), (1, 1), (3, 1)]
    met = {(flow.sender, flow.receiver) for flow in section.flows}
    assert met == {(0, 2), (2, 0), (1, 3), (3, 1)}
    assert section.rounds >= 2
