from __future__ import annotations

import pytest

from ddoctor.evidence.network import PortHolder, Rendezvous
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings

HOLDER = PortHolder(pid=4711, user="kim", command="python train.py")


def rendezvous(
    free: bool | None, *, chosen: bool = True, holder: PortHolder | None = HOLDER
) -> Rendezvous:
    return Rendezvous(
        host="a",
        master_here=True,
        port=29500,
        port_from="MASTER_PORT" if chosen else "default",
        port_free=free,
        port_holder=None if free else holder,
        other_port=29501,
    )


def test_a_chosen_port_that_is_taken_is_an_error(findings: Findings) -> None:
    (finding,) = findings("master-port-in-use", rendezvous(False))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert "pid 4711" in finding.because
    assert "python train.py" in finding.because
    assert finding.fixes[0].paste.startswith("export MASTER_PORT=29501\n")
    assert finding.fixes[1].paste.endswith("-p 4711")


def test_the_default_port_only_warns_since_not_everybody_takes_it(findings: Findings) -> None:
    (finding,) = findings("master-port-in-use", rendezvous(False, chosen=False))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)


def test_a_holder_that_cannot_be_seen_is_said_to_be_hidden(findings: Findings) -> None:
    (finding,) = findings("master-port-in-use", rendezvous(False, holder=None))
    assert "not visible from here" in finding.because
    assert len(finding.fixes) == 1


@pytest.mark.parametrize("chosen", [True, False])
def test_quiet_where_it_is_free(findings: Findings, chosen: bool) -> None:
    assert findings("master-port-in-use", rendezvous(True, chosen=chosen)) == ()


@pytest.mark.parametrize("chosen", [True, False])
def test_quiet_where_it_was_not_tried(findings: Findings, chosen: bool) -> None:
    assert findings("master-port-in-use", rendezvous(None, chosen=chosen)) == ()
