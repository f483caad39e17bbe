from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from ddoctor.cluster import local_probes
from ddoctor.evidence.cluster_probes import ClockOffsets
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.section import Evidence
from tests.faulty.clock_ahead import AHEAD

ROOT = Path(__file__).parent.parent.parent
offset = import_module("ddoctor.probes.clock_skew").offset


def test_it_is_skipped_on_one_host(evidence: Evidence) -> None:
    (runs,) = evidence.all(ProbeRuns)
    (run,) = (run for run in runs.runs if run.probe == "clock_skew")
    assert (run.outcome, run.reason) == ("skipped", "there is only one host")
    assert evidence.all(ClockOffsets) == ()


def test_one_clock_is_equal_to_itself_and_another_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    probes = ["tests.faulty.two_hosts", "tests.faulty.clock_ahead"]
    *sections, runs = local_probes.measure(probes, limit=120, data=tmp_path)
    assert isinstance(runs, ProbeRuns)
    assert [run.outcome for run in runs.runs] == ["completed", "completed"]
    for section, due in zip(sections, (0.0, AHEAD), strict=True):
        assert isinstance(section, ClockOffsets)
        first, second = section.offsets
        assert (first.host, first.offset, first.uncertainty) == ("node-0", 0.0, 0.0)
        assert second.host == "node-1"
        # Half a microsecond: what a float keeps of seconds since 1970.
        assert abs(second.offset - due) <= second.uncertainty + 5e-7


@pytest.mark.parametrize("ahead", [-2.5, 0.0, 0.2])
def test_a_delay_on_the_way_is_within_the_uncertainty(ahead: float) -> None:
    # 10 ms there, 1 ms of work, 2 ms back.
    told, uncertainty = offset([(ahead, 0.010, 0.011, 0.013 + ahead)])
    assert told - ahead == pytest.approx(-0.004)
    assert uncertainty == pytest.approx(0.006)


def test_the_shortest_round_trip_counts() -> None:
    slow, fast = (0.0, 0.5, 0.5, 0.6), (1.0, 1.001, 1.001, 1.002)
    assert offset([slow, fast, slow]) == pytest.approx((0.0, 0.001))
