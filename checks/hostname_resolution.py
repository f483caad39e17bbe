"""A host name that the ranks connect to does not resolve, or resolves to the wrong address.

Gloo binds to the address of the host's own name. Debian and many images map that name to 127.0.0.1
or 127.0.1.1 in /etc/hosts. One node then works, but across nodes every peer connects to itself
("Gloo connectFullMesh failed … Connection refused"). The c10d rendezvous of torchrun announces the
node's full name to other nodes, and compares it to find out which node hosts the store.

If the own name does not resolve, gloo falls back to the loopback address, and torchrun's c10d
rendezvous raises "Name or service not known". If MASTER_ADDR does not resolve, no rank can join. On
Kubernetes, the name of a pod may not resolve until the pod runs.

Symptoms: ``getent ahosts $(hostname)`` or ``getent ahosts $MASTER_ADDR`` fails or shows a loopback
address on some node.

To fix it, set ``GLOO_SOCKET_IFNAME`` and torchrun's ``--local-addr``, correct /etc/hosts, or use an
IP address as MASTER_ADDR.
"""

# Above 150 lines: four names can be wrong (own name, MASTER_ADDR twice, endpoint), with different
# fixes.

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.analysis.interface_choice import gloo_choice
from ddoctor.evidence.host import Kernel
from ddoctor.evidence.joining import HostJoining
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.log import Log
from ddoctor.evidence.network import Network, Rendezvous
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = (
    "network-unreachable",
    "dead-rank",
    "first-failure-masked",
    "script-error",
    "rank-missing-at-init",
)

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def own_name(network: Network, rendezvous: Rendezvous | None) -> Iterator[Finding]:
    name = network.own_name
    if not name.name:
        return
    nodes = rendezvous.several_nodes if rendezvous is not None else ""
    bound = gloo_choice(network).interfaces
    chosen = bool(network.gloo_socket_ifname and bound)
    if name.error:
        severity = Severity.ERROR if nodes and not chosen else Severity.WARNING
        because = (
            f"the host's own name {name.name} does not resolve ({name.error}): torchrun's c10d "
            "rendezvous fails, and gloo falls back to the loopback address"
        )
    elif not chosen and any(
        one.name in bound and one.kind == "loopback" for one in network.interfaces
    ):
        severity = Severity.WARNING if nodes else Severity.NOTE
        because = (
            f"the host's own name {name.name} resolves to {', '.join(name.addresses)}, so gloo "
            f"listens on {bound[0]}, which no other node can reach"
        )
    else:
        return
    yield Finding(
        severity=severity,
        # On one node it harms nothing, so it must not explain what went wrong there.
        confidence=Confidence.LIKELY if severity > Severity.NOTE else Confidence.POSSIBLE,
        because=because
        + (f"; this run spans nodes ({nodes})" if nodes else "; a run on one node still works"),
        evidence=(
            Observation(
                name=f"address of {name.name}",
                value=name.error or ", ".join(name.addresses),
                expected="an address that other nodes can reach",
                source="getaddrinfo, which gloo uses",
            ),
            Observation(
                name="name that torchrun announces to other nodes",
                value=network.announced_name or "nothing",
                source="getfqdn, which torchrun uses",
            ),
        ),
        fixes=tuple(_by_interface(network, rendezvous)),
    )


def master_name(rendezvous: Rendezvous, kernel: Kernel | None) -> Iterator[Finding]:
    master = rendezvous.master
    if master is None or not master.error:
        return
    in_a_pod = kernel is not None and kernel.container == "kubernetes"
    pending = "; the pod may not run yet: check again once it does" if in_a_pod else ""
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY if in_a_pod else Confidence.CERTAIN,
        because=f"MASTER_ADDR={master.name} does not resolve here ({master.error}){pending}",
        evidence=(
            Observation(name=f"address of {master.name}", value=master.error, source="getaddrinfo"),
        ),
        fixes=(_wait_for(master.name) if in_a_pod else _first_node(rendezvous),),
    )


def master_is_everywhere(rendezvous: Rendezvous) -> Iterator[Finding]:
    master = rendezvous.master
    if master is None or master.name not in LOOPBACK or not rendezvous.several_nodes:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"MASTER_ADDR={master.name}, but this run spans nodes ({rendezvous.several_nodes}): "
            "each node listens on its own loopback address, which no other host can reach"
        ),
        evidence=(
            Observation(
                name="MASTER_ADDR", value=master.name, expected="the same host for all nodes"
            ),
        ),
        fixes=(_first_node(rendezvous),),
    )


def endpoint_name(host_joining: HostJoining) -> Iterator[Finding]:
    way = host_joining.way
    if way is None or way.outcome != "unresolved":
        return
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"{way.host}, the host of the endpoint {host_joining.endpoint}, did not resolve here "
            f"for {host_joining.limit:.0f} s ({way.error})"
        ),
        evidence=(
            Observation(name=f"address of {way.host}", value=way.error, source="getaddrinfo"),
        ),
        fixes=(
            Fix(
                summary="show what this host resolves the name to, and from which sources",
                paste=f"getent ahosts {way.host}; grep ^hosts /etc/nsswitch.conf; "
                "cat /etc/resolv.conf /etc/hosts",
            ),
            Fix(
                summary=f"or pass the address of {way.host} on every host: run this on {way.host}",
                paste=f"""echo "--rdzv-endpoint $(hostname -I | cut -d' ' -f1):{way.port}\"""",
                caution="on several networks, use the address that all hosts can reach",
            ),
        ),
    )


# slurm.schedmd.com/sbatch.html: a list such as node[01-04].
NODE_LIST = re.compile(r"\$\{?SLURM_(?:JOB_)?NODELIST\b")


def a_list_of_nodes(launch: Launch) -> Iterator[Finding]:
    """Slurm's list of all nodes, where the name of one is expected."""
    at = launch.get("endpoint", "main-address", "env.MASTER_ADDR")
    one_node = launch.hosts == 1 or launch.number("nodes") == 1
    if at is not None and NODE_LIST.match(at.value) and not one_node:
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=f"the ranks would meet at {at.value} ({at.at}), which is a list of nodes such "
            "as node[01-04], and no name of a host",
            evidence=(Observation(name="address", value=at.value, source=at.at),),
            fixes=(
                Fix(
                    summary="take the first node of the list",
                    paste='MASTER_ADDR=$(scontrol show hostnames "$SLURM_NODELIST" | head -n 1)',
                ),
            ),
        )


FEW_LINES = 20
"""Lines of a log that may have ended with them."""


def in_a_log(log: Log) -> Iterator[Finding]:
    # torch warns so of an IPv6 address where the IPv4 address is used: alone it says nothing.
    events, late = log.of("name-resolution"), log.of("store-timeout")
    # A download or a tracker that cannot be reached is another matter.
    events = tuple(one for one in events if not log_events.OF_THE_WEB.search(one.text))
    only_warned = not late and all("IPv6 network addresses" in one.text for one in events)
    if events and not (only_warned and (log.of("progress") or log.lines > FEW_LINES)):
        yield log_events.finding(
            events,
            "this machine does not know the address of a host by its name"
            + (f", and {late[0].place} tells that the connection timed out" if late else "")
            + ("; if the run continues, it has found it over IPv4" if only_warned else ""),
            Fix(
                summary="use the address instead of the name, or make the name known on each node",
                paste="getent hosts NAME || echo '10.0.0.1 NAME' | sudo tee -a /etc/hosts",
                caution="in Kubernetes, wait until the name of the pod is known (headless service)",
            ),
            severity=Severity.NOTE if only_warned else Severity.ERROR,
            confidence=Confidence.POSSIBLE if only_warned else Confidence.LIKELY,
        )


def own_name_in_a_log(log: Log) -> Iterator[Finding]:
    """torchrun --standalone has one host, so the name that it cannot reach is that host's own."""
    events = [one for one in log.of("store-timeout") if "any network address" in one.text]
    starts = log.of("standalone")
    names = {one.values["address"] for one in events} - set(LOOPBACK)
    if starts and len(names) == 1:
        (name,) = names
        yield log_events.finding(
            [*events, starts[0]],
            f"the run has one host, which calls itself {name}, and nothing answers at the address "
            "of that name: it resolves to an address of another host, or of none",
            Fix(
                summary="make the ranks use the loopback address, or correct the name",
                paste=f"torchrun --standalone --local-addr=127.0.0.1 …\ngetent ahosts {name}",
            ),
        )


def _by_interface(network: Network, rendezvous: Rendezvous | None) -> Iterator[Fix]:
    toward = network.facing(rendezvous.master_route if rendezvous is not None else None)
    if toward is None:
        return
    name, address = network.own_name.name, toward.addresses[0].address
    yield Fix(
        summary=f"set gloo's interface to {toward.name} and torchrun's address to {address}",
        paste=(
            f"export GLOO_SOCKET_IFNAME={toward.name}\n"
            f"# with torchrun also: torchrun --local-addr {address} …"
        ),
        caution="use the interface and address of each node",
    )
    yield Fix(
        summary=f"or map {name} to {address} in /etc/hosts, as root",
        paste=(
            f"hosts=$(sed -E 's/[[:space:]]{name}([[:space:]]|$)/\\1/g' /etc/hosts) &&\n"
            f"printf '%s\\n' '{address} {name}' \"$hosts\" > /etc/hosts"
        ),
        caution=f"removes {name} from every other line",
    )


def _wait_for(name: str) -> Fix:
    return Fix(
        summary="wait for the name before the training container starts",
        paste=(
            "initContainers:\n"
            "  - name: wait-for-master\n"
            "    image: busybox\n"
            f'    command: [sh, -c, "until nslookup {name}; do sleep 2; done"]\n'
        ),
        language="yaml",
        caution="a headless service resolves earlier only with publishNotReadyAddresses: true",
    )


def _first_node(rendezvous: Rendezvous) -> Fix:
    if rendezvous.several_nodes.startswith("SLURM"):
        return Fix(
            summary="set MASTER_ADDR to the first node of the job",
            paste='export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        )
    return Fix(
        summary="run this on the first node, then the printed line on every node",
        paste="""echo "export MASTER_ADDR=$(hostname -I | cut -d' ' -f1)\"""",
        caution="on several networks, use the address that all nodes can reach",
    )
