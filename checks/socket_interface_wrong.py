"""NCCL or gloo selects a network interface that does not exist or leads to no other node.

NCCL_SOCKET_IFNAME is a list of prefixes (``eth`` selects eth0 and eth1). With ``=`` it lists whole
names, with ``^`` the interfaces to exclude. GLOO_SOCKET_IFNAME is a list of whole names. If no such
interface exists, is up and has an address, NCCL stops with "no socket interface found" and gloo
with "Unable to find address for".

Without NCCL_SOCKET_IFNAME, NCCL uses every interface but docker*, lo* and virbr*. These include
container bridges (br-…) and veth pairs, whose addresses differ in meaning on every host, so nodes
cannot reach each other.

Symptoms: "NET/Socket : Using [0]br-05ab815fa14e:172.19.0.1" in the log of NCCL_DEBUG=INFO.

To fix it, name the interface towards the other nodes. Nodes with different interface names can
share one list: ``NCCL_SOCKET_IFNAME=enp4s0,enp6s0``.
"""

# Above 150 lines: NCCL, gloo, the automatic choice and logs show it differently.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches

from ddoctor.analysis import log_events
from ddoctor.analysis.environment_fixes import choose_interface, export
from ddoctor.analysis.interface_choice import matches, names_of, nccl_choice
from ddoctor.evidence.log import Log
from ddoctor.evidence.network import Interface, Network, Rdma, Rendezvous
from ddoctor.models import Confidence, Finding, Observation, Severity

EXPLAINS = ("dead-rank", "network-unreachable", "first-failure-masked", "script-error")
# NCCL lists what it uses as [0]eth0:10.0.0.1<0>, or without a number.
CHOSEN = re.compile(r"([\w.@-]{1,40}):([\w.:%]{1,60})<\d")
FAILURES = ("nccl-connect", "nccl-refused", "nccl-remote", "watchdog", "no-route", "store-wait")
"""What a wrong interface leads to."""
VIRTUAL = ("docker", "virbr", "br-", "cni", "flannel", "ip6tnl", "sit", "tunl")


def nccl(network: Network, rendezvous: Rendezvous | None) -> Iterator[Finding]:
    value = network.nccl_socket_ifname
    # NCCL ignores a value of one character, and so does torch for gloo.
    if value is None or len(value) < 2 or nccl_choice(network).interfaces:
        return
    because = f"NCCL_SOCKET_IFNAME={value} excludes every interface that is up"
    confidence = Confidence.CERTAIN
    if not value.startswith("^"):
        meant = [one for one in network.interfaces if matches(value, one.name) and one.addresses]
        because = f"NCCL_SOCKET_IFNAME={value} names {_what(meant, names_of(value), network)}"
        if meant:
            # Before 2.29 NCCL used an interface without carrier, which fails between nodes.
            because += ": NCCL 2.29 and later stop there, an older NCCL hangs"
            confidence = Confidence.LIKELY
    yield _finding("NCCL_SOCKET_IFNAME", because, network, rendezvous, confidence)


def gloo(network: Network, rendezvous: Rendezvous | None) -> Iterator[Finding]:
    value = network.gloo_socket_ifname
    for name in value.split(",") if value is not None and len(value) > 1 else ():
        interface = network.interface(name)
        if interface is not None and interface.usable:
            continue
        meant = [interface] if interface is not None and interface.addresses else []
        because = f"GLOO_SOCKET_IFNAME={value} names {_what(meant, (name,), network)}"
        if name.startswith(("^", "=")):
            because += "; gloo takes whole names only"
        # gloo binds to an interface without carrier anyway, and on a single node that even works.
        confidence = Confidence.LIKELY if meant else Confidence.CERTAIN
        found = _finding("GLOO_SOCKET_IFNAME", because, network, rendezvous, confidence)
        alone = rendezvous is None or not rendezvous.several_nodes
        yield replace(found, severity=Severity.WARNING) if meant and alone else found
        return


def automatic(network: Network, rendezvous: Rendezvous, rdma: Rdma | None) -> Iterator[Finding]:
    toward = network.facing(rendezvous.master_route)
    if not rendezvous.several_nodes or toward is None:
        return
    # The socket transport uses all of them; with RDMA only the bootstrap uses sockets: the first.
    choice = nccl_choice(network)
    used = choice.interfaces[: 1 if rdma is not None and rdma.fabric else None]
    interfaces = (network.interface(name) for name in used)
    astray = [one.name for one in interfaces if one and _stays_here(one, toward)]
    if not astray:
        return
    because = (
        f"NCCL uses {', '.join(used)} ({choice.rule}); {', '.join(astray)} "
        f"{'lead' if len(astray) > 1 else 'leads'} to no other node, and this run spans nodes "
        f"({rendezvous.several_nodes})"
    )
    found = _finding("NCCL_SOCKET_IFNAME", because, network, rendezvous, Confidence.LIKELY)
    yield found if astray[0] == used[0] else replace(found, severity=Severity.WARNING)


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("no-socket-interface", "gloo-interface"):
        yield log_events.finding(
            [event],
            "no interface of this machine has the name or the address that was asked for",
            choose_interface("eth0"),
        )
        return
    fallen, failed = log.of("gloo-loopback"), log.of("gloo-connect", "no-route")
    if fallen and failed:
        yield log_events.finding(
            [*fallen, *failed],
            "gloo listens on the loopback interface, and ranks on other machines cannot connect",
            choose_interface("eth0"),
        )
        return
    if event := log.first("gloo-loopback-peer"):
        yield log_events.finding(
            [event],
            "a rank is asked for at the loopback address: where it is on another machine, its "
            "host name resolves to that, and gloo has taken it",
            choose_interface("eth0"),
            confidence=Confidence.LIKELY if log.several_hosts else Confidence.POSSIBLE,
        )
        return
    for event in log.of("nccl-connect"):
        if event.values.get("address", "").lower().startswith("fe80"):
            yield log_events.finding(
                [event],
                "another rank gives its link-local address, which is of an interface that no "
                "other machine reaches",
                choose_interface("eth0"),
            )
            return
    listed = [(one, CHOSEN.findall(one.values["interfaces"])) for one in log.of("nccl-interfaces")]
    every = {name for _, chosen in listed for name, _ in chosen}
    for event, chosen in listed:
        odd = [name for name, address in chosen if _leads_nowhere(name, address)]
        good = sorted(every - {*odd})
        refused = log.first("nccl-refused") if odd == ["lo"] else None
        if odd and (good or log.several_hosts or refused):
            # Within one machine every interface does.
            trouble = log.several_hosts or log.of(*FAILURES)
            yield log_events.finding(
                [event, *([refused] if refused else [])],
                f"NCCL uses {' and '.join(odd)}, over which no other machine is reached",
                choose_interface(good[0] if good else "eth0"),
                severity=Severity.ERROR if trouble else Severity.NOTE,
                confidence=Confidence.LIKELY if trouble else Confidence.POSSIBLE,
            )
            return


def _leads_nowhere(name: str, address: str) -> bool:
    """Whether it is loopback, of containers or tunnels, or has only a link-local address."""
    return name == "lo" or name.startswith(VIRTUAL) or address.lower().startswith("fe80:")


def _stays_here(one: Interface, toward: Interface) -> bool:
    """Whether it leads to no other node. If the route to the others is a veth as well, this is a
    container, not its host."""
    return one.stays_here and one != toward and one.kind != toward.kind


def _what(meant: Sequence[Interface], names: Sequence[str], network: Network) -> str:
    if meant:
        return " and ".join(
            f"{one.name}, which is {'up, but without carrier' if one.up else 'down'}"
            for one in meant
        )
    present = [one.name for one in network.interfaces]
    if set(names) & set(present):
        return f"{' and '.join(names)}, which has no address"
    close = [match for name in names for match in get_close_matches(name, present, n=1)]
    guess = f"did you mean {close[0]}?" if close else f"this host has {', '.join(present)}"
    do = "does" if len(names) == 1 else "do"
    return f"{' and '.join(names)}, which {do} not exist: {guess}"


def _finding(
    variable: str,
    because: str,
    network: Network,
    rendezvous: Rendezvous | None,
    confidence: Confidence,
) -> Finding:
    toward = network.facing(rendezvous.master_route if rendezvous is not None else None)
    fix = toward and export(
        f"{variable}={toward.name}",
        f"use {toward.name}, the interface towards the other nodes",
        "on every node, use the name that the interface has there",
    )
    return Finding(
        severity=Severity.ERROR,
        confidence=confidence,
        because=because,
        evidence=(
            Observation(
                name=f"candidates for {variable}",
                value=", ".join(one.name for one in network.interfaces if one.usable) or "none",
                source="interfaces that are up and have an address",
            ),
        ),
        fixes=(fix,) if fix else (),
    )
