"""A host name that the ranks meet by does not resolve, or resolves to the wrong address.

Gloo binds to the address that the own host name resolves to. Debian and many images map it to
127.0.0.1 or 127.0.1.1 in /etc/hosts: one node works, but across nodes every peer is told to connect
to itself ("Gloo connectFullMesh failed … Connection refused"). torchrun's c10d rendezvous tells the
others the node's full name, and by its own name a node recognises that it is to host the store.

Where the own name resolves to nothing, gloo falls back to the loopback address and torchrun's c10d
rendezvous raises "Name or service not known". Where MASTER_ADDR does not resolve, no rank can join;
on Kubernetes the name of a pod may only not resolve yet.

Seen from outside: ``getent ahosts $(hostname)`` and ``getent ahosts $MASTER_ADDR`` on every node.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.interface_choice import gloo_choice
from ddoctor.evidence.host import Kernel
from ddoctor.evidence.joining import HostJoining
from ddoctor.evidence.network import Network, Rendezvous
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = ("network-unreachable",)

THIS_HOST_ALONE = ("localhost", "127.0.0.1", "::1")


def own_name(network: Network, rendezvous: Rendezvous | None) -> Iterator[Finding]:
    name = network.own_name
    nodes = rendezvous.several_nodes if rendezvous is not None else ""
    told = bool(network.gloo_socket_ifname and gloo_choice(network).interfaces)
    if name.error:
        severity = Severity.ERROR if nodes and not told else Severity.WARNING
        because = (
            f"the own name {name.name} does not resolve ({name.error}): torchrun's c10d rendezvous "
            "fails, and gloo falls back to the loopback address"
        )
    elif told or not _loops_back(network):
        return
    else:
        severity = Severity.WARNING if nodes else Severity.NOTE
        because = (
            f"the own name {name.name} resolves to {', '.join(name.addresses)}, so gloo listens on "
            f"{gloo_choice(network).interfaces[0]}, where no other node can reach it"
        )
    yield Finding(
        severity=severity,
        confidence=Confidence.LIKELY if severity > Severity.NOTE else Confidence.CERTAIN,
        because=because
        + (f"; this run spans nodes ({nodes})" if nodes else "; a single node can live with that"),
        evidence=(
            Observation(
                name=f"what {name.name} resolves to",
                value=name.error or ", ".join(name.addresses),
                expected="an address by which other nodes reach it",
                source="getaddrinfo, which gloo asks",
            ),
            Observation(
                name="what other nodes are told by torchrun",
                value=network.announced_name or "nothing",
                source="getfqdn, which torchrun asks",
            ),
        ),
        fixes=tuple(_by_interface(network, rendezvous)),
    )


def master_name(rendezvous: Rendezvous, kernel: Kernel | None) -> Iterator[Finding]:
    master = rendezvous.master
    if master is None or not master.error:
        return
    in_a_pod = kernel is not None and kernel.container == "kubernetes"
    settle = (
        "; it may only not resolve yet: look again once that pod is running" if in_a_pod else ""
    )
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY if in_a_pod else Confidence.CERTAIN,
        because=f"MASTER_ADDR={master.name} does not resolve here ({master.error}){settle}",
        evidence=(
            Observation(
                name=f"what {master.name} resolves to", value=master.error, source="getaddrinfo"
            ),
        ),
        fixes=(_wait_for(master.name) if in_a_pod else _first_node(rendezvous),),
    )


def master_is_everywhere(rendezvous: Rendezvous) -> Iterator[Finding]:
    master = rendezvous.master
    if master is None or master.name not in THIS_HOST_ALONE or not rendezvous.several_nodes:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"MASTER_ADDR={master.name} means another host on every node, and this run spans nodes "
            f"({rendezvous.several_nodes}): each node would wait for the others at its own door"
        ),
        evidence=(
            Observation(
                name="MASTER_ADDR", value=master.name, expected="a name that means one host to all"
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
            f"{way.host}, the name of the endpoint {host_joining.endpoint}, did not resolve here "
            f"for {host_joining.limit:.0f} s ({way.error})"
        ),
        evidence=(
            Observation(name=f"what {way.host} resolves to", value=way.error, source="getaddrinfo"),
        ),
        fixes=(
            Fix(
                summary="see what this host's resolver knows, and by which sources",
                paste=f"getent ahosts {way.host}; grep ^hosts /etc/nsswitch.conf; "
                "cat /etc/resolv.conf /etc/hosts",
            ),
            Fix(
                summary=f"or give the address of {way.host} on every host: run this there",
                paste=f"""echo "--rdzv-endpoint $(hostname -I | cut -d' ' -f1):{way.port}\"""",
                caution="where it has several networks, take the address that all hosts can reach",
            ),
        ),
    )


def _loops_back(network: Network) -> bool:
    bound = (network.interface(name) for name in gloo_choice(network).interfaces)
    return any(interface is not None and interface.kind == "loopback" for interface in bound)


def _by_interface(network: Network, rendezvous: Rendezvous | None) -> Iterator[Fix]:
    toward = network.facing(rendezvous.master_route if rendezvous is not None else None)
    if toward is None:
        return
    name, address = network.own_name.name, toward.addresses[0].address
    yield Fix(
        summary=f"name the interface to gloo and the address to torchrun: {toward.name}, {address}",
        paste=(
            f"export GLOO_SOCKET_IFNAME={toward.name}\n"
            f"# with torchrun also: torchrun --local-addr {address} …"
        ),
        caution="on every node its own interface and address",
    )
    yield Fix(
        summary=f"or let {name} resolve to {address}, as root",
        paste=(
            f"hosts=$(sed -E 's/[[:space:]]{name}([[:space:]]|$)/\\1/g' /etc/hosts) &&\n"
            f"printf '%s\\n' '{address} {name}' \"$hosts\" > /etc/hosts"
        ),
        caution=f"it takes {name} out of every other line",
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
        caution="a headless service answers before that only with publishNotReadyAddresses: true",
    )


def _first_node(rendezvous: Rendezvous) -> Fix:
    if rendezvous.several_nodes.startswith("SLURM"):
        return Fix(
            summary="take the first node of the job",
            paste='export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        )
    return Fix(
        summary="run this on the first node, and the line that it prints on every node",
        paste="""echo "export MASTER_ADDR=$(hostname -I | cut -d' ' -f1)\"""",
        caution="where a node has several networks, take the address that all nodes can reach",
    )
