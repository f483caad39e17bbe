from __future__ import annotations

from ddoctor.evidence.probes import HostToDevice, ProbeRuns
from ddoctor.evidence.section import Evidence


def test_it_is_skipped_without_a_gpu(evidence: Evidence) -> None:
    (runs,) = evidence.all(ProbeRuns)
    (run,) = (run for run in runs.runs if run.probe == "host_to_device")
    assert (run.outcome, run.reason) == ("skipped", "no GPU is in use")
    assert evidence.all(HostToDevice) == ()
