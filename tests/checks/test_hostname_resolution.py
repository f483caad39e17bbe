from __future__ import annotations

import pytest

from ddoctor.evidence.host import Kernel
from ddoctor.evidence.joining import Attempt, HostJoining, Outcome
from ddoctor.evidence.network import Address, Interface, Network, Rendezvous, ResolvedName, Route
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings

LO = Interface(
    name="lo",
    kind="loopback",
    up=True,
    running=True,
    addresses=(Address(address="127.0.0.1", prefix=8),),
    mtu=65536,
)
ETH0 = Interface(
    name="eth0",
    kind="ethernet",
    up=True,
    running=True,
    addresses=(Address(address="10.0.0.1", prefix=24),),
    mtu=1500,
)


def network(*addresses: str, error: str = "", gloo: str | None = None) -> Network:
    return Network(
        host="a",
        interfaces=(LO, ETH0),
        default_route=Route(to="default", interface="eth0"),
        own_name=ResolvedName(name="a", addresses=addresses, error=error),
        announced_name="localhost",
        gloo_socket_ifname=gloo,
    )


def rendezvous(master: ResolvedName | None = None, nodes: str = "") -> Rendezvous:
    return Rendezvous(
        host="a",
        master=master,
        master_here=master is None,
        port=29500,
        port_from="default",
        several_nodes=nodes,
    )


ONE, TWO = rendezvous(), rendezvous(nodes="SLURM_NNODES=2")
UNKNOWN = "Name or service not known"


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1"])
def test_loopback_warns_where_the_run_spans_nodes(findings: Findings, address: str) -> None:
    (finding,) = findings("hostname-resolution", network(address), TWO)
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.LIKELY
    assert address in finding.because
    assert "SLURM_NNODES=2" in finding.because
    assert "export GLOO_SOCKET_IFNAME=eth0" in finding.fixes[0].paste
    assert "10.0.0.1 a" in finding.fixes[1].paste


@pytest.mark.parametrize("others", [(), (ONE,)])
def test_loopback_is_a_note_on_a_single_node(
    findings: Findings, others: tuple[Rendezvous, ...]
) -> None:
    (finding,) = findings("hostname-resolution", network("127.0.1.1"), *others)
    assert finding.severity is Severity.NOTE
    # A note explains no failure only if it is no more than possible.
    assert finding.confidence is Confidence.POSSIBLE


def test_an_address_of_another_host_makes_gloo_fall_back_to_loopback(findings: Findings) -> None:
    (finding,) = findings("hostname-resolution", network("10.9.9.9"), TWO)
    assert finding.severity is Severity.WARNING
    assert "10.9.9.9" in finding.because


@pytest.mark.parametrize(
    ("where", "gloo", "severity"),
    [
        (ONE, None, Severity.WARNING),
        (TWO, None, Severity.ERROR),
        (TWO, "eth0", Severity.WARNING),
    ],
)
def test_a_name_that_does_not_resolve(
    findings: Findings, where: Rendezvous, gloo: str | None, severity: Severity
) -> None:
    (finding,) = findings("hostname-resolution", network(error=UNKNOWN, gloo=gloo), where)
    assert finding.severity is severity
    assert UNKNOWN in finding.because


def test_a_master_that_does_not_resolve_is_an_error(findings: Findings) -> None:
    lost = rendezvous(ResolvedName(name="node-9", error=UNKNOWN))
    (finding,) = findings("hostname-resolution", network("10.0.0.1"), lost)
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert "MASTER_ADDR=node-9" in finding.because


def test_the_name_of_a_pod_may_only_not_resolve_yet(findings: Findings) -> None:
    lost = rendezvous(ResolvedName(name="job-master-0", error=UNKNOWN))
    pod = Kernel(host="a", release="6.1", container="kubernetes")
    (finding,) = findings("hostname-resolution", network("10.0.0.1"), lost, pod)
    assert finding.confidence is Confidence.LIKELY
    assert "nslookup job-master-0" in finding.fixes[0].paste


def test_localhost_is_no_meeting_place_for_several_nodes(findings: Findings) -> None:
    here = ResolvedName(name="localhost", addresses=("127.0.0.1",))
    where = rendezvous(here, nodes="SLURM_NNODES=2")
    (finding,) = findings("hostname-resolution", network("10.0.0.1"), where)
    assert finding.severity is Severity.WARNING
    assert "scontrol" in finding.fixes[0].paste


@pytest.mark.parametrize("where", [ONE, TWO])
@pytest.mark.parametrize("addresses", [("10.0.0.1",), ("10.0.0.1", "127.0.1.1")])
def test_quiet_where_gloo_gets_a_real_address(
    findings: Findings, addresses: tuple[str, ...], where: Rendezvous
) -> None:
    assert findings("hostname-resolution", network(*addresses), where) == ()


def test_quiet_where_gloo_has_an_interface(findings: Findings) -> None:
    assert findings("hostname-resolution", network("127.0.1.1", gloo="eth0"), TWO) == ()


def test_quiet_where_the_interface_is_wrong_which_is_another_cause(findings: Findings) -> None:
    assert findings("hostname-resolution", network("127.0.1.1", gloo="eth9"), TWO) == ()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_quiet_about_localhost_on_one_node(findings: Findings, name: str) -> None:
    here = rendezvous(ResolvedName(name=name, addresses=("127.0.0.1",)))
    assert findings("hostname-resolution", network("10.0.0.1"), here) == ()


def test_quiet_about_a_master_elsewhere_that_resolves(findings: Findings) -> None:
    there = ResolvedName(name="node-9", addresses=("10.0.0.9",))
    where = rendezvous(there, nodes="MASTER_ADDR=node-9 is another host")
    assert findings("hostname-resolution", network("10.0.0.1"), where) == ()


def at_the_endpoint(outcome: Outcome, error: str = "") -> HostJoining:
    way = Attempt(host="node-0", address="node-0", port=29400, outcome=outcome, error=error)
    return HostJoining(host="a", endpoint="node-0:29400", limit=20, expected=2, way=way)


def test_the_name_of_the_endpoint(findings: Findings) -> None:
    (found,) = findings("hostname-resolution", at_the_endpoint("unresolved", UNKNOWN))
    assert "the endpoint node-0:29400, did not resolve here for 20 s" in found.because
    assert UNKNOWN in found.because
    assert found.severity is Severity.ERROR
    assert found.where.hosts == ("a",)


@pytest.mark.parametrize("outcome", ["connected", "refused", "timeout", "no route"])
def test_the_name_of_the_endpoint_resolves(findings: Findings, outcome: Outcome) -> None:
    assert findings("hostname-resolution", at_the_endpoint(outcome)) == ()
