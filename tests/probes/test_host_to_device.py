from __future__ import annotations

import torch

from ddoctor.evidence.probes import HostToDevice, ProbeRuns
from ddoctor.evidence.section import Evidence


def test_it_is_measured_on_gpus_and_skipped_without(evidence: Evidence) -> None:
    (runs,) = evidence.all(ProbeRuns)
    (run,) = (run for run in runs.runs if run.probe == "host_to_device")
    if torch.cuda.is_available():
        (section,) = evidence.all(HostToDevice)
        assert all(rate.rate > 0.5 for rate in (*section.to_device, *section.to_host))
    else:
        assert (run.outcome, run.reason) == ("skipped", "no GPU is in use")
