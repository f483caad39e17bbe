"""One host, direction or link is slower than its peers.

A collective runs at the speed of its slowest link, so one bad cable, port or NIC costs all hosts.
Disjoint pairs send to one another, each direction on its own; a host that is slow with everybody
is told from a path that is slow between two, from one direction, and from a rail (the same NIC of
all hosts). Named is what is slow in every repeat, even at its best below what sound links reach.

Seen from outside: all-reduce over all hosts is slow, and fast again once one of them is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median, median_low

from ddoctor.analysis import slow_rails
from ddoctor.analysis.interface_choice import gloo_choice, nccl_choice
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.slow_links import Analysis, Slow
from ddoctor.evidence.arms import ControlArms
from ddoctor.evidence.interface_rates import InterfaceRates
from ddoctor.evidence.interfaces import Interface
from ddoctor.evidence.live import LiveLink
from ddoctor.evidence.network import Network
from ddoctor.evidence.pairs import Pairs
from ddoctor.evidence.probes import AllReduce, ProbeRuns, RankPlace
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

# Far beyond what two equal networks differ by.
FASTER = 1.5
# Of the looks at a live run's sockets: then the network never rests.
QUEUED = 0.5
# What plain TCP reaches between hosts whatever their cards promise; Mbit/s.
TCP_SPEED = 10_000
# A sound link carries half of that with any settings.
SOUND = 0.5
MBIT_PER_MIB = 8 * 2**20 / 1e6

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
    every = [(look.host, rank) for look in live.looks for rank in look.links]
    # What is not read there is not held up on its way.
    unread = {(rank.remote, rank.local) for _, rank in every if rank.unread >= QUEUED}
    links = [
        (host, rank)
        for host, rank in every
        if _carried(rank) is not None and (rank.local, rank.remote) not in unread
    ]
    if not share or not links:
        return
    host, worst = min(links, key=lambda link: _carried(link[1]) or 0.0)
    carried, speed = _carried(worst) or 0.0, min(worst.speed or TCP_SPEED, TCP_SPEED)
    if carried >= SOUND * speed:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"all ranks are in collectives for {share:.0%} of the time, and from {host} to "
            f"{worst.remote} there is always something left to send: {worst.interface} carries "
            f"{carried:.3g} Mbit/s, and says of itself that it is one of {worst.speed} Mbit/s"
        ),
        evidence=(
            Observation(
                name=f"sent over {worst.interface} of {host}",
                value=round(carried, 1),
                unit="Mbit/s",
                expected=speed,
                source="what the interface has sent while the queues of the ranks were not empty",
            ),
        ),
        where=Where(hosts=(host,)),
        cost=Cost(value=round(share, 2), unit="share of step"),
        fixes=(
            Fix(
                summary="see what the link has agreed on, what it loses, and what shapes it",
                paste=(
                    f"ethtool {worst.interface}; ip -s link show {worst.interface}; "
                    f"tc -s qdisc show dev {worst.interface}"
                ),
                caution=f"on {host}",
            ),
            Fix(
                summary="measure each pair of hosts, once the run is over",
                paste="torchrun … -m ddoctor.probe pairs  # on the same hosts",
            ),
        ),
    )


def _carried(link: LiveLink) -> float | None:
    """Mbit/s while something was left to send; None: not known, or mostly nothing was."""
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
    """The library takes one interface on all hosts, and another of the same name carries more."""
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
            f"{'NCCL' if nccl else 'gloo'} takes {taken[0]}, over which plain TCP reaches "
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
                summary=f"take {best} in place of {taken[0]}, on every host",
                paste=f"export {setting}",
                expected_gain=f"up to {rate / usual:.3g} times between hosts",
                environment=(setting,),
            ),
        ),
    )


def _finding(
    section: Pairs, analysis: Analysis, slow: Slow, networks: Mapping[str, Network]
) -> Finding:
    of_rank = {end.place.rank: end.place for end in section.ends}
    places = [of_rank[rank] for rank in slow.ranks]
    hosts = tuple(dict.fromkeys(place.host for place in places))
    one_host = len({end.place.host for end in section.ends}) == 1
    names = [_name(place, _alone(section, slow, place)) for place in places]
    rail = next(end.rail for end in section.ends if end.place.rank in slow.ranks)
    peers = sum(end.rail == rail for end in section.ends)
    sure = slow.what not in ("link", "path") and peers > 2
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN if sure else Confidence.LIKELY,
        because=(
            f"{_said(slow, names, section)} {_speed(slow.rate)} at best in {slow.repeats} repeats, "
            f"and sound links of this run reach {_speed(analysis.usual)}"
        ),
        evidence=(
            Observation(
                name="best transfer",
                value=round(slow.rate, 4),
                unit="GB/s",
                expected=round(analysis.usual, 4),
                source="median of the sound links of this run",
            ),
            *_speeds(section, hosts, networks),
        ),
        where=Where(
            hosts=hosts,
            ranks=slow.ranks,
            devices=tuple(dict.fromkeys(place.device for place in places)),
        ),
        cost=Cost(value=round(1 - slow.rate / analysis.usual, 3), unit="share of link speed"),
        fixes=tuple(_fixes(section, slow, names, hosts, one_host, networks)),
    )


def _alone(section: Pairs, slow: Slow, place: RankPlace) -> bool:
    """Whether it is this rank that is slow, and others of its host are not."""
    here = {end.place.rank for end in section.ends if end.place.host == place.host}
    return not here <= set(slow.ranks)


def _name(place: RankPlace, alone: bool) -> str:
    return f"rank {place.rank} ({place.device}) on {place.host}" if alone else place.host


def _said(slow: Slow, names: list[str], section: Pairs) -> str:
    if slow.what == "host":
        return f"{names[0]} is slow in both directions, with everybody:"
    if slow.what == "sending":
        return f"{names[0]} sends slowly to everybody, and receives as others do:"
    if slow.what == "receiving":
        return f"{names[0]} receives slowly from everybody, and sends as others do:"
    if slow.what == "link":
        return f"the link between {names[0]} and {names[1]} is slow in both directions:"
    if slow.what == "path":
        return f"the way from {names[0]} to {names[1]} is slow, in this direction alone:"
    (rail,) = {end.rail for end in section.ends if end.place.rank in slow.ranks}
    return f"rail {rail} is slow on all {len(names)} hosts that were measured:"


def _speed(rate: float) -> str:
    return f"{rate:.3g} GB/s" if rate >= 1 else f"{rate * 8000:.0f} Mbit/s"


def _speeds(
    section: Pairs, hosts: tuple[str, ...], networks: Mapping[str, Network]
) -> Iterator[Observation]:
    """What the interfaces themselves tell, beside those of the other hosts."""
    told = {
        host: interface
        for host, network in networks.items()
        if (interface := _interface(section, network)) is not None and interface.speed
    }
    others = [one.speed for host, one in told.items() if host not in hosts and one.speed]
    for host in hosts:
        if host in told:
            yield Observation(
                name=f"speed of {told[host].name} on {host}",
                value=told[host].speed or 0,
                unit="Mbit/s",
                expected=median(others) if others else None,
                source="its driver" + ("; median of the other hosts" if others else ""),
            )


def _interface(section: Pairs, network: Network) -> Interface | None:
    """The one that the transfers took, where it is known."""
    if section.backend == "nccl" and "NET/Socket" not in (section.transport or ""):
        return None
    choice = nccl_choice(network) if section.backend == "nccl" else gloo_choice(network)
    return network.interface(choice.interfaces[0]) if choice.interfaces else None


def _fixes(
    section: Pairs,
    slow: Slow,
    names: list[str],
    hosts: tuple[str, ...],
    one_host: bool,
    networks: Mapping[str, Network],
) -> Iterator[Fix]:
    if slow.what == "rail":
        yield Fix(
            summary="see the switches of this rail: their ports, errors and uplinks",
            paste="ibstat\nibdiagnet",
            caution="all hosts share what is slow, so it is not a host",
        )
        return
    if one_host:
        yield Fix(
            summary="see how these devices are joined, and whether a link is down",
            paste="nvidia-smi topo -m\nnvidia-smi nvlink --status",
        )
        return
    if "NET/IB" in (section.transport or ""):
        several = len({end.rail for end in section.ends}) > 1
        yield Fix(
            summary=f"on {' and '.join(hosts)}, see rate, state and errors of the ports",
            paste=("nvidia-smi topo -m\n" if several else "") + "ibstat\nperfquery -x",
            caution="then swap cable and switch port; leave the host out until it is mended",
        )
        return
    for host in hosts:
        network = networks.get(host)
        interface = _interface(section, network) if network is not None else None
        name = interface.name if interface is not None else "INTERFACE"
        yield Fix(
            summary=f"on {host}, see speed, duplex, errors and shapers of {name}",
            paste=(
                f"ethtool {name} | grep -E 'Speed|Duplex|Link detected'\n"
                f"ip -s link show dev {name}\n"
                f"tc -s qdisc show dev {name}"
            ),
            caution="then swap cable and switch port; leave the host out until it is mended",
        )
        if interface is not None:
            yield from _another(section, host, interface, networks, alone=len(hosts) == 1)
    if slow.what in ("link", "path"):
        yield Fix(
            summary="see what lies between the two, and measure it without torch",
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
    """Another interface that is in one subnet with all other hosts, and not known to be slower."""
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
                summary=f"on {host}, take {one.name}{speed} in place of {interface.name}",
                paste=f"export {variable}={one.name}",
                caution="the others reach it there: all hosts are in one subnet with it",
                environment=(f"{variable}={one.name}",) if alone else (),
            )
