"""Hosts cannot connect to each other's ports, although their names resolve.

Often a firewall opens only the rendezvous port. But gloo and NCCL connect every host with every
other host, on ports that the kernel chooses (32768 to 60999 on Linux). In a container with a
separate bridge network, the other hosts receive addresses that they cannot reach.

Refused: the host is up, but no process listens there, or a firewall rejects the connection.
Timeout: a firewall drops the packets, or the host is down. No route: this host has no route to that
network.

Symptoms: "Gloo connectFullMesh failed", NCCL's "connect to 10.0.0.2<41234> failed : Connection
timed out", or ranks that wait in init_process_group forever.

To fix it, open all TCP ports between the hosts, or run containers with ``--network=host``.
"""

# Above 150 lines: connections between hosts and to the endpoint have different fixes.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.analysis import log_events
from ddoctor.analysis.environment_fixes import choose_interface, connection_test
from ddoctor.evidence.joining import Attempt, HostJoining, Reach
from ddoctor.evidence.log import Log, LogEvent
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

# A download or a tracker that cannot be reached is another matter.
EXPLAINS = (
    "dead-rank",
    "rank-missing-at-init",
    "rank-stuck-outside-collective",
    "first-failure-masked",
    "script-error",
)
OF_MACHINE = True

MEANING = {
    "refused": "was refused: no process listens there, or a firewall rejects it",
    "timeout": "was not answered: a firewall drops it, or the host is down",
    "no route": "found no route",
    "failed": "failed",
}
NOT_LISTENING = (
    "was refused: the host is up, but no process listens: its command was not started or has "
    "ended, or a firewall rejects the connection"
)
LINK_LOCAL = re.compile(r"\bfe80:", re.IGNORECASE)
OF_CONNECTING = re.compile(r"nccl|connect|socket|route|unreachable|timed out", re.IGNORECASE)
"""What a rank says that cannot reach another one."""
FEW = 6
"""Connections that one finding lists, and lines after which a log continues."""
# torch/csrc/distributed/c10d/socket.cpp, SocketConnectOp::tryConnect; it raises after the timeout.
ONE_ATTEMPT = re.compile(r"\[W[ \d].*client socket has failed to connect to")


def between_hosts(reaches: tuple[Reach, ...]) -> Iterator[Finding]:
    tried = [(reach.host, one) for reach in reaches for one in reach.attempts]
    failed = [row for row in tried if _broken(row[1])]
    hosts = {host for host, _ in tried} | {one.host for _, one in tried}
    # A host that no other host reaches, while the others reach each other, causes all of its rows.
    # With two hosts either end may be the cause.
    unreached = {
        host
        for host in hosts
        if len(hosts) > 2
        and (towards := [_broken(one) for _, one in tried if one.host == host])
        and all(towards)
    }
    culprits = unreached if len(unreached) < len(hosts) - 1 else set()
    for host in sorted(culprits):
        rows = [(source, one) for source, one in failed if one.host == host]
        what = _meaning(rows[0][1])
        because = f"none of {len(rows)} hosts can connect to {host}: a connection {what}"
        yield _finding(because, rows, (host,))
    rest = [row for row in failed if row[1].host not in culprits and row[0] not in culprits]
    if rest:
        ends = tuple(sorted({host for source, one in rest for host in (source, one.host)}))
        source, one = rest[0]
        because = (
            f"{len(rest)} of {len(tried)} connections between hosts failed; the one from {source} "
            f"to {one.host} {_meaning(one)}"
        )
        yield _finding(because, rest, ends)


def to_the_endpoint(host_joining: HostJoining) -> Iterator[Finding]:
    way = host_joining.way
    # A name that does not resolve is a separate cause.
    if way is None or not _broken(way) or way.outcome == "unresolved":
        return
    refused = way.outcome == "refused"
    meaning = NOT_LISTENING if refused else _meaning(way)
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY if refused else Confidence.CERTAIN,
        because=(
            f"this host could not connect to {host_joining.endpoint} for "
            f"{host_joining.limit:.0f} s: the last connection {meaning}"
        ),
        evidence=(
            Observation(
                name=f"{host_joining.host} to {host_joining.endpoint}",
                value=way.outcome,
                expected="connected",
                source=way.error,
            ),
        ),
        fixes=tuple(_ways_there(way)),
    )


def in_a_log(log: Log, run: TrainingRun | None) -> Iterator[Finding]:
    if log_events.failed_otherwise(run, OF_CONNECTING):
        return
    for event in log.of("nccl-connect", "no-route", "nccl-no-subnet"):
        address = event.values.get("address", "")
        if LINK_LOCAL.search(event.text):
            continue  # of an interface that leads nowhere: socket-interface-wrong
        if log_events.OF_THE_WEB.search(event.text) or _tries_again(event, log):
            continue
        bridge = address.startswith("172.17.")
        yield log_events.finding(
            [event],
            "the address is on Docker's bridge, which other machines do not reach"
            if bridge
            else "the other machine cannot be reached at this address and port",
            Fix(summary="let the ranks use the host's network", paste="docker run --network=host …")
            if bridge
            else Fix(
                summary="open all TCP ports between the nodes, and test one",
                paste=f"nc -vz {address or 'ADDRESS'} 29500; sudo iptables -L -n | head -40",
            ),
            *(() if bridge else (choose_interface("eth0"),)),
            # The rank may also have told the others an address of the wrong interface.
            confidence=Confidence.POSSIBLE
            if event.pattern == "no-route" or not address
            else Confidence.LIKELY,
        )
        return


def _tries_again(event: LogEvent, log: Log) -> bool:
    """Whether it warns of one attempt, after which the log continues: torch then tries again."""
    continues = log.lines - event.last >= FEW
    return continues and ONE_ATTEMPT.search(event.text) is not None


def by_ssh(log: Log) -> Iterator[Finding]:
    if event := log.first("ssh-connect"):
        host, port = event.values["address"], event.values["port"]
        yield log_events.finding(
            [event],
            f"no rank starts on {host}, because ssh does not reach it at port {port}",
            Fix(
                summary="try that connection alone, and look at the ssh server there",
                paste=f"nc -vz {host} {port}; ssh -p {port} -o ConnectTimeout=5 {host} true",
                caution="in containers, it often listens at another port",
            ),
            confidence=Confidence.POSSIBLE,
        )


def without_a_store(log: Log) -> Iterator[Finding]:
    events = log.of("store-timeout")
    if waiting := log.of("clients-joined"):
        # The rendezvous was there and waited for ranks that did not get through.
        events = tuple(one for one in events if "timed out" in one.text)
    events = tuple(one for one in events if not _tries_again(one, log))
    if events and not log.of("name-resolution", "address-in-use"):
        address = events[0].values.get("address", "ADDRESS:29500")
        host, _, port = address.rpartition(":")
        yield log_events.finding(
            events,
            f"the rendezvous waits ({waiting[0].place}), and a rank does not get through to it: a "
            "firewall is between, or it has another address"
            if waiting
            else "the rendezvous did not answer: its host has not started, has another address, "
            "or a firewall is between",
            Fix(
                summary="start the node of that address first, and test the port from the others",
                paste=f"nc -vz {host or address} {port or 29500}",
                caution="each node needs the same --rdzv-endpoint, an address that all can reach",
            ),
            confidence=Confidence.LIKELY if waiting else Confidence.POSSIBLE,
        )


def _ways_there(way: Attempt) -> Iterator[Fix]:
    if way.outcome == "refused":
        yield Fix(
            summary=f"on {way.host}, start the same command, and check that it listens",
            paste=f"ss -ltnp 'sport = :{way.port}'",
            caution="the port is open only while the run waits there",
        )
    yield Fix(
        summary="on this host, check the address, the route and the port",
        paste=connection_test(way.host, way.port),
    )
    if way.outcome == "timeout":
        yield Fix(
            summary=f"on {way.host}, open the port for the hosts of the run, as root",
            paste=f"iptables -I INPUT -p tcp --dport {way.port} -j ACCEPT\n"
            "iptables -S; nft list ruleset",
            caution="open all other TCP ports between the hosts too; in a cloud, use security "
            "groups",
        )


def _broken(one: Attempt) -> bool:
    return one.outcome != "connected"


def _meaning(one: Attempt) -> str:
    return MEANING.get(one.outcome, f"failed ({one.error})")


def _finding(because: str, rows: Sequence[tuple[str, Attempt]], hosts: tuple[str, ...]) -> Finding:
    first = rows[0][1]
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=because,
        evidence=tuple(
            Observation(
                name=f"{source or 'here'} to {one.host} ({one.address}:{one.port})",
                value=one.outcome,
                expected="connected",
                source=one.error,
            )
            for source, one in rows[:FEW]
        ),
        where=Where(hosts=hosts),
        fixes=(
            Fix(
                summary="open all TCP ports between the hosts, as root on each of them",
                paste=f"iptables -I INPUT -s {first.address}/24 -p tcp -j ACCEPT\n"
                "ss -ltn; iptables -S; nft list ruleset",
                caution="/24 is a guess at the hosts' network; in a cloud, use security groups",
            ),
            Fix(
                summary="test one connection while the probe waits",
                paste=f"ip route get {first.address}\n"
                f"timeout 3 bash -c '</dev/tcp/{first.address}/{first.port}' && echo open",
            ),
            Fix(
                summary="for containers, use the host's network",
                paste="docker run --network=host --ipc=host …",
            ),
        ),
    )
