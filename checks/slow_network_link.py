"""One host, direction or link is slower than its peers.

A collective runs at the speed of its slowest link, so one bad cable, port or NIC slows down all
hosts. ddoctor lets disjoint pairs send to each other, one direction at a time. The results separate
a host that is slow with every peer from a slow path between two hosts, a slow direction, and a slow
rail (the same NIC of all hosts). A link counts as slow only if even its best repeat is below what
healthy links reach.

Symptoms: all-reduce over all hosts is slow, and fast again without one of them.

To fix it, check speed, errors and cables of the named link, and leave the host out until then.
"""

# Above 150 lines: it judges measured pairs, sockets of a live run and other interfaces; each kind
# of slow thing has its own sentence and its own commands.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median, median_low

from ddoctor.analysis import slow_rails
from ddoctor.analysis.describe import where
from ddoctor.analysis.interface_choice import gloo_choice, nccl_choice
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.slow_links import Analysis, Slow, What
from ddoctor.evidence.cluster_probes import ControlArms, InterfaceRates, Pairs
from ddoctor.evidence.live import LiveLink
from ddoctor.evidence.network import Interface, Network
from ddoctor.evidence.probes import AllReduce, ProbeRuns, RankPlace
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

# Far beyond the difference of two equal networks.
FASTER = 1.5
# Share of the samples of a live run's sockets with unsent data: then the network never idles.
QUEUED = 0.5
# Mbit/s that plain TCP reaches between hosts, whatever the nominal speed of their cards.
TCP_SPEED = 10_000
# A healthy link carries half of that with any settings.
SOUND = 0.5
MBIT_PER_MIB = 8 * 2**20 / 1e6

SENTENCES: Mapping[What, str] = {
    "host": "{0} is slow in both directions, with every peer",
    "sending": "{0} sends slowly to every peer, and receives normally",
    "receiving": "{0} receives slowly from every peer, and sends normally",
    "link": "the link between {0} and {1} is slow in both directions",
    "path": "the path from {0} to {1} is slow, in this direction only",
    "rail": "rail {rail} is slow on all {number} measured hosts",
}

EXPLAINS = ("collective-slow-for-hardware", "communication-bound-step")
OF_MACHINE = True


def between_ranks(
    pairs: tuple[Pairs, ...], networks: tuple[Network, ...] | None
) -> Iterator[Finding]:
    by_host = {network.host: network for network in networks or ()}
    for section in pairs:
        analysis = slow_rails.analyse(section.flows, section.ends)
        for slow in analysis.slow:
            yield _finding(section, analysis, slow, by_host)


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    share = live.together
    every = [(look.host, link) for look in live.looks for link in look.links]
    # If the receiver does not read, the network is not the cause.
    unread = {(link.remote, link.local) for _, link in every if link.unread >= QUEUED}
    links = [
        (carried, host, link)
        for host, link in every
        if (carried := _carried(link)) is not None and (link.local, link.remote) not in unread
    ]
    if not share or not links:
        return
    carried, host, worst = min(links, key=lambda row: row[0])
    speed = min(worst.speed or TCP_SPEED, TCP_SPEED)
    if carried >= SOUND * speed:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"all ranks are in collectives for {share:.0%} of the time, and {host} always has "
            f"unsent data for {worst.remote}: {worst.interface} carries {carried:.3g} Mbit/s, and "
            f"its nominal speed is {worst.speed} Mbit/s"
        ),
        evidence=(
            Observation(
                name=f"sent over {worst.interface} of {host}",
                value=round(carried, 1),
                unit="Mbit/s",
                expected=speed,
                source="sent by the interface while the send queues of the ranks were not empty",
            ),
        ),
        where=Where(hosts=(host,)),
        cost=Cost(value=round(share, 2), unit="share of step"),
        fixes=(
            Fix(
                summary="show the negotiated speed, the losses and the traffic shaping of the link",
                paste=(
                    f"ethtool {worst.interface}; ip -s link show {worst.interface}; "
                    f"tc -s qdisc show dev {worst.interface}"
                ),
                caution=f"on {host}",
            ),
            Fix(
                summary="measure each pair of hosts after the run",
                paste="torchrun … -m ddoctor.probe pairs  # on the same hosts",
            ),
        ),
    )


def _carried(link: LiveLink) -> float | None:
    """Mbit/s while data was left to send; None: not known, or mostly no data was left."""
    if link.sent is None or link.speed is None or link.queued < QUEUED:
        return None
    return link.sent * MBIT_PER_MIB / link.queued


def a_faster_interface(
    interface_rates: tuple[InterfaceRates, ...],
    networks: tuple[Network, ...],
    probe_runs: tuple[ProbeRuns, ...],
    all_reduces: tuple[AllReduce, ...] | None,
    tried: tuple[ControlArms, ...] | None,
) -> Iterator[Finding]:
    """The library uses one interface on all hosts, and another one on all hosts is faster."""
    nccl = any(section.backend == "nccl" for section in probe_runs)
    if nccl and not any("NET/Socket" in (one.transport or "") for one in all_reduces or ()):
        return
    variable, sign = ("NCCL_SOCKET_IFNAME", "=") if nccl else ("GLOO_SOCKET_IFNAME", "")
    choices = {(nccl_choice(one) if nccl else gloo_choice(one)).interfaces[:1] for one in networks}
    if len(choices) != 1 or not (taken := choices.pop()):
        return
    rates = interface_rates[0]
    usual = median_low(rates.of(taken[0]) or (0.0,))
    others = sorted({row.interface for row in rates.rates} - set(taken))
    best = max(others, key=lambda name: min(rates.of(name)), default="")
    rate = min(rates.of(best), default=0.0)
    setting = f"{variable}={sign}{best}"
    if not usual or rate < FASTER * usual:
        return
    arm = tried[0].of((setting,), ()) if tried else None
    if arm is not None and not arm.gained:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{'NCCL' if nccl else 'gloo'} uses {taken[0]}, over which plain TCP reaches "
            f"{_speed(usual)} between the hosts; over {best} it reaches {_speed(rate)} everywhere"
        ),
        evidence=(
            Observation(
                name=f"TCP over {taken[0]}",
                value=round(usual, 4),
                unit="GB/s",
                expected=round(rate, 4),
                source=f"the slowest connection over {best}",
            ),
        ),
        cost=Cost(value=round(1 - usual / rate, 3), unit="share of link speed"),
        fixes=(
            Fix(
                summary=f"use {best} instead of {taken[0]}, on every host",
                paste=f"export {setting}",
                expected_gain=f"up to {rate / usual:.3g} times between hosts",
                environment=(setting,),
            ),
        ),
    )


def _finding(
    section: Pairs, analysis: Analysis, slow: Slow, networks: Mapping[str, Network]
) -> Finding:
    by_rank = {end.place.rank: end for end in section.ends}
    ends = [by_rank[rank] for rank in slow.ranks]
    hosts = tuple(dict.fromkeys(end.place.host for end in ends))
    names = [_name(section, slow, end.place) for end in ends]
    peers = sum(end.rail == ends[0].rail for end in section.ends)
    sure = slow.what not in ("link", "path") and peers > 2
    subject = SENTENCES[slow.what].format(*names, rail=ends[0].rail, number=len(names))
    interfaces = {
        host: interface
        for host, network in networks.items()
        if (interface := _interface(section, network)) is not None
    }
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN if sure else Confidence.LIKELY,
        because=(
            f"{subject}: {_speed(slow.rate)} at best in {slow.repeats} repeats, and healthy links "
            f"of this run reach {_speed(analysis.usual)}"
        ),
        evidence=(
            Observation(
                name="best transfer",
                value=round(slow.rate, 4),
                unit="GB/s",
                expected=round(analysis.usual, 4),
                source="median of the healthy links of this run",
            ),
            *_speeds(hosts, interfaces),
        ),
        where=where(end.place for end in ends),
        cost=Cost(value=round(1 - slow.rate / analysis.usual, 3), unit="share of link speed"),
        fixes=tuple(_fixes(section, slow, names, hosts, networks, interfaces)),
    )


def _name(section: Pairs, slow: Slow, place: RankPlace) -> str:
    """The host; or the rank, if other ranks of its host are not slow."""
    here = {end.place.rank for end in section.ends if end.place.host == place.host}
    if here <= set(slow.ranks):
        return place.host
    return f"rank {place.rank} ({place.device}) on {place.host}"


def _speed(rate: float) -> str:
    return f"{rate:.3g} GB/s" if rate >= 1 else f"{rate * 8000:.0f} Mbit/s"


def _speeds(hosts: Sequence[str], interfaces: Mapping[str, Interface]) -> Iterator[Observation]:
    """The nominal speeds of the interfaces, compared to those of the other hosts."""
    speeds = {host: one.speed for host, one in interfaces.items() if one.speed}
    others = [speed for host, speed in speeds.items() if host not in hosts]
    for host in hosts:
        if host in speeds:
            yield Observation(
                name=f"speed of {interfaces[host].name} on {host}",
                value=speeds[host],
                unit="Mbit/s",
                expected=median(others) if others else None,
                source="its driver" + ("; median of the other hosts" if others else ""),
            )


def _interface(section: Pairs, network: Network) -> Interface | None:
    """The interface of the transfers; None: not known."""
    if section.backend == "nccl" and "NET/Socket" not in (section.transport or ""):
        return None
    choice = nccl_choice(network) if section.backend == "nccl" else gloo_choice(network)
    return network.interface(choice.interfaces[0]) if choice.interfaces else None


def _fixes(
    section: Pairs,
    slow: Slow,
    names: Sequence[str],
    hosts: Sequence[str],
    networks: Mapping[str, Network],
    interfaces: Mapping[str, Interface],
) -> Iterator[Fix]:
    if slow.what == "rail":
        yield Fix(
            summary="check the switches of this rail: ports, errors and uplinks",
            paste="ibstat\nibdiagnet",
            caution="all hosts are slow on this rail, so the cause is not a single host",
        )
        return
    if len({end.place.host for end in section.ends}) == 1:
        yield Fix(
            summary="check how these devices are connected, and whether a link is down",
            paste="nvidia-smi topo -m\nnvidia-smi nvlink --status",
        )
        return
    if "NET/IB" in (section.transport or ""):
        several = len({end.rail for end in section.ends}) > 1
        yield Fix(
            summary=f"on {' and '.join(hosts)}, check rate, state and errors of the ports",
            paste=("nvidia-smi topo -m\n" if several else "") + "ibstat\nperfquery -x",
            caution="then swap cable and switch port; leave the host out until it is fixed",
        )
        return
    for host in hosts:
        interface = interfaces.get(host)
        name = interface.name if interface is not None else "INTERFACE"
        yield Fix(
            summary=f"on {host}, check speed, duplex, errors and traffic shaping of {name}",
            paste=(
                f"ethtool {name} | grep -E 'Speed|Duplex|Link detected'\n"
                f"ip -s link show dev {name}\n"
                f"tc -s qdisc show dev {name}"
            ),
            caution="then swap cable and switch port; leave the host out until it is fixed",
        )
        if interface is not None:
            yield from _another(section, host, interface, networks, alone=len(hosts) == 1)
    if slow.what in ("link", "path"):
        yield Fix(
            summary="trace the path between the two hosts, and measure it without torch",
            paste=f"tracepath {names[1]}\niperf3 --client {names[1]} --bidir",
            caution=f"on {names[0]}, while `iperf3 --server` runs on {names[1]}",
        )


def _another(
    section: Pairs,
    host: str,
    interface: Interface,
    networks: Mapping[str, Network],
    *,
    alone: bool,
) -> Iterator[Fix]:
    """Another interface in one subnet with all other hosts, and not known to be slower."""
    reached = [
        {subnet for one in network.interfaces if one.usable for subnet in one.networks}
        for other, network in networks.items()
        if other != host
    ]
    for one in networks[host].interfaces:
        joins = one.usable and all(one.networks & subnets for subnets in reached)
        here_alone = one.kind in ("loopback", "local-bridge")
        slower = one.speed and interface.speed and one.speed < interface.speed
        if reached and joins and one.name != interface.name and not here_alone and not slower:
            variable = "NCCL_SOCKET_IFNAME" if section.backend == "nccl" else "GLOO_SOCKET_IFNAME"
            speed = f" ({one.speed} Mbit/s)" if one.speed else ""
            yield Fix(
                summary=f"on {host}, use {one.name}{speed} instead of {interface.name}",
                paste=f"export {variable}={one.name}",
                caution="it is in one subnet with all other hosts, so they can reach it",
                environment=(f"{variable}={one.name}",) if alone else (),
            )
