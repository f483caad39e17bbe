from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from ddoctor.evidence.cluster_probes import (
    ArmTurn,
    ControlArm,
    ControlArms,
    End,
    Flow,
    InterfaceRate,
    InterfaceRates,
    Pairs,
)
from ddoctor.evidence.live import LiveLink, LiveLook
from ddoctor.evidence.network import Address, Interface, Network, ResolvedName
from ddoctor.evidence.probes import AllReduce, ProbeRuns, RankPlace
from ddoctor.evidence.section import Section
from ddoctor.models import Confidence
from tests.conftest import Findings
from tests.live_look import look, moving

CAUSE = "slow-network-link"
NOISE = (1.0, 0.98, 0.97, 0.99, 0.98, 1.0, 0.96)
SLOW = 0.012


def pairs(
    rate: Callable[[int, int], float],
    *,
    hosts: int = 4,
    one_host: bool = False,
    backend: str = "gloo",
    transport: str | None = None,
    rails: int = 1,
) -> Pairs:
    ranks = range(hosts * rails)
    return Pairs(
        backend=backend,
        transport=transport,
        ends=tuple(
            End(
                place=RankPlace(
                    rank=rank,
                    host="node-0" if one_host else f"node-{rank // rails}",
                    device="cuda:0" if backend == "nccl" else "cpu",
                ),
                rail=rank % rails,
            )
            for rank in ranks
        ),
        flows=tuple(
            Flow(sender=a, receiver=b, bytes=2**26, rates=tuple(rate(a, b) * one for one in NOISE))
            for a in ranks
            for b in ranks
            if a != b and a % rails == b % rails
        ),
    )


def network(host: int, *others: Interface, speed: int | None = 1000) -> Network:
    address = f"10.0.0.{host + 1}"
    return Network(
        host=f"node-{host}",
        interfaces=(
            Interface(
                name="eth0",
                kind="ethernet",
                up=True,
                running=True,
                addresses=(Address(address=address, prefix=24),),
                speed=speed,
                mtu=1500,
            ),
            *others,
        ),
        own_name=ResolvedName(name=f"node-{host}", addresses=(address,)),
    )


def fast(host: int, *, network: int = 1, speed: int | None = 10000) -> Interface:
    return Interface(
        name="eth1",
        kind="ethernet",
        up=True,
        running=True,
        addresses=(Address(address=f"10.0.{network}.{host + 1}", prefix=24),),
        speed=speed,
        mtu=1500,
    )


def usual(sender: int, receiver: int) -> float:
    return 1.1


def of_host(sender: int, receiver: int) -> float:
    return SLOW if 2 in (sender, receiver) else 1.1


def test_a_host_slow_with_everybody(findings: Findings) -> None:
    (finding,) = findings(CAUSE, pairs(of_host))
    assert finding.where.hosts == ("node-2",)
    assert finding.confidence is Confidence.CERTAIN
    assert "node-2 is slow in both directions" in finding.because
    assert "96 Mbit/s" in finding.because
    assert "1.1 GB/s" in finding.because
    assert "ip -s link show dev INTERFACE" in finding.fixes[0].paste


def test_a_host_that_sends_slowly(findings: Findings) -> None:
    (finding,) = findings(CAUSE, pairs(lambda a, _: SLOW if a == 1 else 1.1))
    assert finding.where.hosts == ("node-1",)
    assert "node-1 sends slowly" in finding.because


def test_a_host_that_receives_slowly(findings: Findings) -> None:
    (finding,) = findings(CAUSE, pairs(lambda _, b: SLOW if b == 1 else 1.1))
    assert finding.where.hosts == ("node-1",)
    assert "node-1 receives slowly" in finding.because


def test_two_hosts_that_are_slow_with_one_another(findings: Findings) -> None:
    (finding,) = findings(CAUSE, pairs(lambda a, b: SLOW if {a, b} == {0, 3} else 1.1))
    assert finding.where.hosts == ("node-0", "node-3")
    assert finding.confidence is Confidence.LIKELY
    assert "the link between node-0 and node-3" in finding.because


def test_one_way_between_two_hosts(findings: Findings) -> None:
    (finding,) = findings(CAUSE, pairs(lambda a, b: SLOW if (a, b) == (3, 0) else 1.1))
    assert finding.where.ranks == (3, 0)
    assert "the path from node-3 to node-0" in finding.because
    assert any("tracepath node-0" in fix.paste for fix in finding.fixes)


def test_the_interface_and_its_speed_are_told(findings: Findings) -> None:
    networks = [network(host, speed=100 if host == 2 else 1000) for host in range(4)]
    (finding,) = findings(CAUSE, pairs(of_host), *networks)
    (row,) = [row for row in finding.evidence if "speed of" in row.name]
    assert (row.name, row.value, row.expected) == ("speed of eth0 on node-2", 100, 1000)
    assert "ethtool eth0" in finding.fixes[0].paste
    assert len(finding.fixes) == 1


def test_another_interface_that_joins_all_hosts_is_named(findings: Findings) -> None:
    networks = [network(host, fast(host)) for host in range(4)]
    (finding,) = findings(CAUSE, pairs(of_host), *networks)
    assert finding.fixes[1].paste == "export GLOO_SOCKET_IFNAME=eth1"
    assert finding.fixes[1].summary == "on node-2, use eth1 (10000 Mbit/s) instead of eth0"
    assert finding.fixes[1].environment == ("GLOO_SOCKET_IFNAME=eth1",)


@pytest.mark.parametrize(
    "other",
    [lambda host: fast(host, network=host + 1), lambda host: fast(host, speed=100)],
    ids=["does not reach the others", "slower"],
)
def test_one_that_does_not_help_is_not_named(
    findings: Findings, other: Callable[[int], Interface]
) -> None:
    (finding,) = findings(CAUSE, pairs(of_host), *(network(host, other(host)) for host in range(4)))
    assert not [fix for fix in finding.fixes if "export" in fix.paste]


def test_the_ports_of_an_rdma_fabric(findings: Findings) -> None:
    section = pairs(of_host, backend="nccl", transport="NET/IB/0/GDRDMA")
    (finding,) = findings(CAUSE, section, *(network(host) for host in range(4)))
    assert "ibstat" in finding.fixes[0].paste
    assert not [row for row in finding.evidence if "speed of" in row.name]


def test_a_rail(findings: Findings) -> None:
    section = pairs(lambda a, _: SLOW if a % 4 == 3 else 1.1, backend="nccl", rails=4)
    (finding,) = findings(CAUSE, section)
    assert "rail 3 is slow on all 4 measured hosts" in finding.because
    assert finding.where.ranks == (3, 7, 11, 15)


def test_one_nic_of_a_host(findings: Findings) -> None:
    section = pairs(
        lambda a, b: SLOW if 6 in (a, b) else 1.1, backend="nccl", transport="NET/IB", rails=4
    )
    (finding,) = findings(CAUSE, section)
    assert finding.where.ranks == (6,)
    assert "rank 6 (cuda:0) on node-1 is slow in both directions" in finding.because
    assert finding.fixes[0].paste.startswith("nvidia-smi topo -m")


def test_a_host_on_all_its_rails(findings: Findings) -> None:
    section = pairs(lambda a, b: SLOW if 1 in (a // 4, b // 4) else 1.1, backend="nccl", rails=4)
    (finding,) = findings(CAUSE, section)
    assert finding.where.ranks == (4, 5, 6, 7)
    assert finding.where.hosts == ("node-1",)
    assert finding.because.startswith("node-1 is slow in both directions")


def test_sound_rails(findings: Findings) -> None:
    section = pairs(lambda a, b: 1.1, backend="nccl", transport="NET/IB", rails=4)
    assert findings(CAUSE, section) == ()


def test_devices_of_one_host(findings: Findings) -> None:
    (finding,) = findings(CAUSE, pairs(of_host, one_host=True, backend="nccl", hosts=8))
    assert "rank 2 (cuda:0)" in finding.because
    assert "nvidia-smi" in finding.fixes[0].paste


def uneven(sender: int, receiver: int) -> float:
    return 1.1 * (0.8 if sender == 2 else 1.0)


def racks(sender: int, receiver: int) -> float:
    return 1.1 if sender // 2 == receiver // 2 else 0.5


@pytest.mark.parametrize("rate", [usual, uneven, racks])
def test_quiet_where_nothing_stands_out(
    findings: Findings, rate: Callable[[int, int], float]
) -> None:
    assert findings(CAUSE, pairs(rate)) == ()


@pytest.mark.parametrize("hosts", [2, 3])
def test_quiet_on_few_sound_hosts(findings: Findings, hosts: int) -> None:
    assert findings(CAUSE, pairs(usual, hosts=hosts)) == ()


def test_quiet_where_all_are_slow(findings: Findings) -> None:
    assert findings(CAUSE, pairs(lambda a, b: SLOW)) == ()


def test_quiet_on_a_slow_moment(findings: Findings) -> None:
    section = pairs(usual)
    flows = list(section.flows)
    flows[0] = Flow(sender=0, receiver=1, bytes=1, rates=(0.1,) * 6 + (1.1,))
    moment = Pairs(backend="gloo", ends=section.ends, flows=tuple(flows))
    assert findings(CAUSE, moment) == ()


def beside(
    default: Sequence[float], other: Sequence[float], backend: str = "gloo"
) -> list[Section]:
    """Hosts that take eth0, over which and over eth1 plain TCP was measured."""
    hosts = range(len(default))
    rows = (
        InterfaceRate(
            interface=name,
            sender=f"node-{host}",
            receiver=f"node-{(host + 1) % len(default)}",
            rates=(0.9 * rates[host], rates[host]) if rates[host] else (),
        )
        for name, rates in (("eth0", default), ("eth1", other))
        for host in hosts
    )
    return [
        InterfaceRates(rates=tuple(rows)),
        ProbeRuns(runs=(), backend=backend, world_size=len(default)),
        *(network(host, fast(host)) for host in hosts),
    ]


def test_a_faster_interface_on_all_hosts(findings: Findings) -> None:
    (finding,) = findings(CAUSE, *beside([SLOW, SLOW], [1.2, 1.1]))
    assert "gloo uses eth0" in finding.because
    assert "96 Mbit/s between the hosts; over eth1 it reaches 1.1 GB/s" in finding.because
    assert finding.where.hosts == ()
    assert finding.fixes[0].paste == "export GLOO_SOCKET_IFNAME=eth1"
    assert finding.fixes[0].environment == ("GLOO_SOCKET_IFNAME=eth1",)


def test_nccl_over_sockets_takes_a_whole_name(findings: Findings) -> None:
    sockets = AllReduce(backend="nccl", ranks=(), points=(), transport="NET/Socket/0")
    (finding,) = findings(CAUSE, *beside([SLOW, SLOW], [1.2, 1.1], "nccl"), sockets)
    assert finding.fixes[0].paste == "export NCCL_SOCKET_IFNAME==eth1"


@pytest.mark.parametrize(
    ("default", "other"),
    [
        ([1.0, 1.1], [1.2, 1.3]),
        ([1.1, 1.0], [SLOW, SLOW]),
        ([SLOW, SLOW, SLOW], [1.1, 1.1, 0.0]),
        ([1.1, 1.1, SLOW, SLOW], [1.2, SLOW, SLOW, 1.2]),
    ],
    ids=["hardly faster", "slower", "does not reach all", "as slow somewhere"],
)
def test_an_interface_that_is_no_better(
    findings: Findings, default: Sequence[float], other: Sequence[float]
) -> None:
    assert findings(CAUSE, *beside(default, other)) == ()


def test_sockets_do_not_matter_where_nccl_has_rdma(findings: Findings) -> None:
    fabric = AllReduce(backend="nccl", ranks=(), points=(), transport="NET/IB/0/GDRDMA")
    assert findings(CAUSE, *beside([SLOW, SLOW], [1.2, 1.1], "nccl"), fabric) == ()


def test_a_faster_interface_that_was_tried_in_vain_is_no_finding(findings: Findings) -> None:
    tried = ControlArm(
        environment=("GLOO_SOCKET_IFNAME=eth1",),
        bytes=2**20,
        without=(ArmTurn(rate=0.02), ArmTurn(rate=0.021)),
        with_it=(ArmTurn(rate=0.02), ArmTurn(rate=0.022)),
    )
    assert findings(CAUSE, *beside([SLOW, SLOW], [1.2, 1.1]), ControlArms(arms=(tried,))) == ()


SENDING = {"backward-or-wait": 85, "forward": 10, "optimizer": 5}


def link(sent: float | None, queued: float = 0.8, speed: int | None = 10_000) -> LiveLink:
    return LiveLink(
        local="10.0.0.2",
        remote="10.0.0.1",
        interface="eth0",
        queued=queued,
        sent=sent,
        speed=speed,
    )


def exchanging(*links: LiveLink, asleep: float = 0.8) -> LiveLook:
    return look(*(moving(rank, SENDING, asleep=asleep) for rank in range(2)), links=links)


def at_the_other_end(unread: float) -> LiveLook:
    """The host that ``link`` leads to."""
    back = LiveLink(local="10.0.0.1", remote="10.0.0.2", queued=0.0, unread=unread)
    ranks = (moving(rank, SENDING, asleep=0.8) for rank in (2, 3))
    return msgspec.structs.replace(look(*ranks, links=(back,), host="node-1"), world=4)


def test_what_is_not_read_there_is_not_held_up_on_its_way(findings: Findings) -> None:
    here = msgspec.structs.replace(exchanging(link(10.0)), world=4)
    (finding,) = findings(CAUSE, here, at_the_other_end(unread=0.1))
    assert finding.where.hosts == ("node-0",)
    assert findings(CAUSE, here, at_the_other_end(unread=0.9)) == ()


def test_a_live_run_whose_link_never_rests(findings: Findings) -> None:
    (finding,) = findings(CAUSE, exchanging(link(10.0), link(900.0)))
    assert finding.where.hosts == ("node-0",)
    assert "eth0 carries 105 Mbit/s" in finding.because
    assert "10000 Mbit/s" in finding.because


@pytest.mark.parametrize(
    "live",
    [
        # It carries what it can; what TCP can; it rests; nobody knows; they do not wait for it.
        exchanging(link(95.0, speed=1_000)),
        exchanging(link(900.0, speed=400_000)),
        exchanging(link(10.0, queued=0.3)),
        exchanging(link(None)),
        exchanging(link(10.0, speed=None)),
        exchanging(link(10.0), asleep=0.1),
        exchanging(),
    ],
)
def test_quiet_where_the_link_does_what_it_can(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()
