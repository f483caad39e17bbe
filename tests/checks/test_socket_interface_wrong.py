from __future__ import annotations

import pytest

from ddoctor.evidence.network import (
    Address,
    Interface,
    InterfaceKind,
    Network,
    Rdma,
    Rendezvous,
    ResolvedName,
    Route,
)
from ddoctor.models import Confidence, Finding, Severity
from tests.conftest import Findings
from tests.healthy.network import HCAS

CAUSE = "socket-interface-wrong"
ONE = Rendezvous(host="a", master_here=True, port=29500, port_from="default")
TWO = Rendezvous(
    host="a", master_here=True, port=29500, port_from="default", several_nodes="NNODES=2"
)


def interface(
    name: str,
    *addresses: str,
    kind: InterfaceKind = "ethernet",
    up: bool = True,
    running: bool = True,
) -> Interface:
    return Interface(
        name=name,
        kind=kind,
        up=up,
        running=up and running,
        addresses=tuple(Address(address=one, prefix=24) for one in addresses),
        mtu=1500,
    )


LO = interface("lo", "127.0.0.1", kind="loopback")
BOND0 = interface("bond0", "192.168.1.161", kind="bond")
DOCKER0 = interface("docker0", "172.17.0.1", kind="local-bridge", running=False)
BRIDGE = interface("br-05ab815fa14e", "172.19.0.1", kind="local-bridge")
VETH = interface("veth6163fba", "fe80::1", kind="veth")
DOWN = interface("eth1", "10.0.0.1", up=False)
BARE = interface("eth2")


def network(
    *interfaces: Interface, nccl: str | None = None, gloo: str | None = None, way: str = "bond0"
) -> Network:
    return Network(
        host="a",
        interfaces=interfaces,
        default_route=Route(to="default", interface=way),
        own_name=ResolvedName(name="a", addresses=("192.168.1.161",)),
        nccl_socket_ifname=nccl,
        gloo_socket_ifname=gloo,
    )


def only(found: tuple[Finding, ...], severity: Severity, confidence: Confidence) -> Finding:
    (finding,) = found
    assert (finding.severity, finding.confidence) == (severity, confidence)
    return finding


@pytest.mark.parametrize("value", ["bonf0", "=bonf0", "enp4s0,enp6s0"])
def test_nccl_is_told_a_name_that_is_not_there(findings: Findings, value: str) -> None:
    found = findings(CAUSE, network(LO, BOND0, nccl=value), ONE)
    finding = only(found, Severity.ERROR, Confidence.CERTAIN)
    assert f"NCCL_SOCKET_IFNAME={value}" in finding.because
    assert ("did you mean bond0?" in finding.because) is ("bonf0" in value)
    assert finding.fixes[0].paste == "export NCCL_SOCKET_IFNAME=bond0"


def test_the_fix_names_the_interface_towards_the_master(findings: Findings) -> None:
    eth0 = interface("eth0", "10.0.0.1")
    there = Rendezvous(
        host="a",
        master=ResolvedName(name="b", addresses=("10.0.0.2",)),
        master_here=False,
        master_route=Route(to="10.0.0.2", interface="eth0"),
        port=29500,
        port_from="default",
    )
    (finding,) = findings(CAUSE, network(LO, BOND0, eth0, nccl="ens7"), there)
    assert finding.fixes[0].paste == "export NCCL_SOCKET_IFNAME=eth0"


def test_nccl_is_told_to_leave_out_everything(findings: Findings) -> None:
    found = findings(CAUSE, network(LO, BOND0, nccl="^lo,bond"))
    assert "excludes" in only(found, Severity.ERROR, Confidence.CERTAIN).because


def test_nccl_is_told_an_interface_without_address(findings: Findings) -> None:
    found = findings(CAUSE, network(LO, BOND0, BARE, nccl="eth2"))
    assert "no address" in only(found, Severity.ERROR, Confidence.CERTAIN).because


@pytest.mark.parametrize(("told", "words"), [("eth1", "is down"), ("docker", "without carrier")])
def test_nccl_is_told_a_dead_interface(findings: Findings, told: str, words: str) -> None:
    found = findings(CAUSE, network(LO, BOND0, DOCKER0, DOWN, nccl=told))
    assert words in only(found, Severity.ERROR, Confidence.LIKELY).because


@pytest.mark.parametrize("value", ["bond", "^bond0", "=bond0", "bond0,eth9"])
def test_gloo_is_told_a_name_that_is_not_there(findings: Findings, value: str) -> None:
    found = findings(CAUSE, network(LO, BOND0, gloo=value), ONE)
    finding = only(found, Severity.ERROR, Confidence.CERTAIN)
    assert finding.fixes[0].paste == "export GLOO_SOCKET_IFNAME=bond0"
    assert ("whole names" in finding.because) is value.startswith(("^", "="))


@pytest.mark.parametrize(("where", "severity"), [(ONE, Severity.WARNING), (TWO, Severity.ERROR)])
def test_gloo_is_told_a_dead_interface(
    findings: Findings, where: Rendezvous, severity: Severity
) -> None:
    found = findings(CAUSE, network(LO, BOND0, DOWN, gloo="eth1"), where)
    only(found, severity, Confidence.LIKELY)


def test_nccl_would_spread_over_bridges_of_containers(findings: Findings) -> None:
    found = findings(CAUSE, network(LO, BOND0, DOCKER0, BRIDGE, VETH), TWO)
    finding = only(found, Severity.WARNING, Confidence.LIKELY)
    assert "br-05ab815fa14e, veth6163fba lead to no other node" in finding.because
    assert finding.fixes[0].paste == "export NCCL_SOCKET_IFNAME=bond0"


def test_a_bridge_that_comes_first_stops_the_bootstrap(findings: Findings) -> None:
    found = findings(CAUSE, network(LO, BRIDGE, BOND0), TWO)
    only(found, Severity.ERROR, Confidence.LIKELY)


@pytest.mark.parametrize(
    "value", [None, "", "b", "bond", "=bond0", "^docker,lo", "eth9,bond0", "bond0:1"]
)
def test_quiet_where_nccl_finds_one(findings: Findings, value: str | None) -> None:
    assert findings(CAUSE, network(LO, BOND0, DOCKER0, nccl=value), TWO) == ()


@pytest.mark.parametrize("value", [None, "", "bond0", "bond0,bond0"])
def test_quiet_where_gloo_finds_them_all(findings: Findings, value: str | None) -> None:
    assert findings(CAUSE, network(LO, BOND0, gloo=value), TWO) == ()


def test_quiet_about_bridges_on_a_single_node(findings: Findings) -> None:
    assert findings(CAUSE, network(LO, BRIDGE, VETH, BOND0), ONE) == ()


def test_quiet_about_bridges_where_rdma_carries_the_data(findings: Findings) -> None:
    rdma = Rdma(host="a", devices=HCAS)
    assert findings(CAUSE, network(LO, BOND0, BRIDGE, VETH), TWO, rdma) == ()


def test_quiet_in_a_container_whose_way_out_is_a_veth(findings: Findings) -> None:
    eth0 = interface("eth0", "172.17.0.2", kind="veth")
    assert findings(CAUSE, network(LO, eth0, way="eth0"), TWO) == ()


def test_quiet_about_loopback_where_there_is_nothing_else(findings: Findings) -> None:
    assert findings(CAUSE, network(LO), TWO) == ()
