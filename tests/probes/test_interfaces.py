from __future__ import annotations

from ddoctor.evidence.cluster_probes import InterfaceRate, InterfaceRates
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.section import Evidence


def test_it_is_skipped_on_one_host(evidence: Evidence) -> None:
    (runs,) = evidence.all(ProbeRuns)
    (run,) = (run for run in runs.runs if run.probe == "interfaces")
    assert (run.outcome, run.reason) == ("skipped", "there is only one host")


def test_a_connection_counts_by_its_best_repeat() -> None:
    rates = InterfaceRates(
        rates=(
            InterfaceRate(interface="eth0", sender="a", receiver="b", rates=(0.5, 1.0, 0.7)),
            InterfaceRate(interface="eth0", sender="b", receiver="a", error="no route"),
            InterfaceRate(interface="eth1", sender="a", receiver="b", rates=(2.0,)),
        )
    )
    assert rates.of("eth0") == (1.0, 0.0)
    assert rates.of("eth1") == (2.0,)
