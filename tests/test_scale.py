"""Many hosts, small enough for every run of the tests; ``benchmarks/scale.py`` has 4,096."""

from __future__ import annotations

from pathlib import Path

from ddoctor import engine
from ddoctor.evidence import bundle
from ddoctor.models import Verdict
from tests.many_hosts import KINDS, fleet, name, named, planted

HOSTS = 64


def test_every_planted_fault_is_found_and_nothing_else(tmp_path: Path) -> None:
    faults = planted(HOSTS)
    bundle.write(tmp_path / "fleet.json", fleet(HOSTS, faults))
    report = engine.examine(bundle.read(tmp_path / "fleet.json"), "diagnose")
    assert named(report.findings) == {(fault.cause, name(fault.host)) for fault in faults}
    assert len(report.findings) == len(KINDS)
    assert report.crashed == ()
    assert report.world.ranks == 8 * HOSTS


def test_a_sound_fleet_is_healthy() -> None:
    report = engine.examine(fleet(HOSTS), "diagnose")
    assert report.findings == ()
    assert report.verdict is Verdict.HEALTHY


def test_hosts_that_are_skipped_for_one_reason_are_counted_and_not_named() -> None:
    evidence = fleet(HOSTS)
    half = {name(index) for index in range(HOSTS // 2)}
    kept = (
        section
        for section in evidence
        if section.host not in half or section.label() != "shared-memory"
    )
    report = engine.examine(type(evidence)(kept), "diagnose")
    (skipped,) = (row for row in report.skipped if "shared-memory" in row.reason)
    assert skipped.reason.endswith("(on 32 of 64 hosts)")
