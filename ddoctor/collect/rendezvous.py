"""The rendezvous of the ranks, and whether the store can open its port here."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import PurePath

import psutil

from ddoctor.collect.network import interfaces, resolve, route_to
from ddoctor.evidence.network import Interface, PortHolder, Rendezvous, ResolvedName
from ddoctor.evidence.section import Unseen

DEFAULT_PORT = 29500
"""The default of DeepSpeed, accelerate's notebook_launcher, and torchrun's static rendezvous."""
PORTS_TRIED = 100
HIDDEN_HOLDER = "a process of another user or of another container; root sees more (ss -ltnp)"

NODE_COUNTS = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "GROUP_WORLD_SIZE", "PET_NNODES", "NNODES")
"""Set by Slurm, by torchrun for its workers, by Kubeflow for torchrun, and by many scripts."""
RANK_COUNTS = (
    ("WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
)


def rendezvous() -> Rendezvous:
    """MASTER_ADDR as the resolver sees it, and the port by opening it for an instant."""
    known = tuple(interfaces())
    address = os.environ.get("MASTER_ADDR")
    master = resolve(address) if address else None
    here = master is None or _is_here(master, known)
    addresses = master.addresses if master is not None and not here else ()
    routes = (route_to(address, known) for address in addresses)
    text = os.environ.get("MASTER_PORT", "")
    given = text.isdecimal() and int(text) < 2**16
    port = int(text) if given else DEFAULT_PORT
    unseen = []
    if text and not given:
        unseen.append(Unseen(what="MASTER_PORT", why=f"{text!r} is no port number"))
    free, why_not_tried = _free(port, os.environ) if here else (None, "")
    if free is False and _is_own(port):
        free, why_not_tried = None, "this is the rank whose own store has the port"
    holder = _holder(port) if free is False else None
    if why_not_tried:
        unseen.append(Unseen(what=f"whether port {port} is free", why=why_not_tried))
    if free is False and holder is None:
        unseen.append(Unseen(what=f"who has port {port}", why=HIDDEN_HOLDER))
    return Rendezvous(
        master=master,
        master_here=here,
        master_route=next((route for route in routes if route is not None), None),
        port=port,
        port_from="MASTER_PORT" if given else "default",
        port_free=free,
        port_holder=holder,
        other_port=_other(port) if free is False else None,
        several_nodes=_several_nodes(os.environ, master if not here else None),
        unseen=tuple(unseen),
    )


def _is_here(master: ResolvedName, known: tuple[Interface, ...]) -> bool:
    own = {address.address for interface in known for address in interface.addresses}
    return any(ip_address(one).is_loopback or one in own for one in master.addresses)


def _free(port: int, environment: Mapping[str, str]) -> tuple[bool | None, str]:
    if "TORCHELASTIC_RUN_ID" in environment:
        return None, "this is a worker of a running torchrun, whose own store has the port"
    try:
        _open(port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False, ""
        return None, f"cannot be opened: {error.strerror}"
    return True, ""


def _open(port: int) -> None:
    """Bind a port for an instant as torch's TCPStore does: all addresses, reuse allowed."""
    for family in (socket.AF_INET6, socket.AF_INET):
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue
        with listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("", port))
            except OSError as error:
                # IPv6 is there but switched off.
                if error.errno == errno.EADDRNOTAVAIL:
                    continue
                raise


def _is_own(port: int) -> bool:
    # Asked of this process alone: a child that starts has its sockets, too, and may be found first.
    with suppress(psutil.Error, OSError):
        own = psutil.Process().net_connections(kind="tcp")
        return any(one.laddr[1:2] == (port,) for one in own)
    return False


def _holder(port: int) -> PortHolder | None:
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    holding = [one for one in connections if one.laddr and one.laddr.port == port]
    holding.sort(key=lambda one: one.status != psutil.CONN_LISTEN)
    seen = (_process(one.pid) for one in holding if one.pid is not None)
    return next((holder for holder in seen if holder is not None), None)


def _process(pid: int) -> PortHolder | None:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            words = process.cmdline() or [process.name()]
            return PortHolder(pid=pid, user=process.username(), command=" ".join(_program(words)))
    except psutil.Error:
        return None


def _program(words: list[str]) -> Iterator[str]:
    """The program and its script or module: what follows may hold secrets."""
    if len(words) == 1:
        # A title that the process gave itself.
        words = words[0].split() or [""]
    yield PurePath(words[0]).name
    for word in words[1:]:
        if "=" in word:
            return
        yield word
        if word == "-c" or not word.startswith("-"):
            return


def _other(port: int) -> int | None:
    for candidate in range(port + 1, min(port + PORTS_TRIED, 2**16)):
        try:
            _open(candidate)
        except OSError:
            continue
        return candidate
    return None


def _several_nodes(environment: Mapping[str, str], elsewhere: ResolvedName | None) -> str:
    for name in NODE_COUNTS:
        count = environment.get(name, "").rpartition(":")[2]
        if count.isdecimal() and int(count) > 1:
            return f"{name}={environment[name]}"
    for everywhere, here in RANK_COUNTS:
        ranks, local = environment.get(everywhere, ""), environment.get(here, "")
        if ranks.isdecimal() and local.isdecimal() and int(ranks) > int(local):
            return f"{everywhere}={ranks} with {here}={local}"
    if elsewhere is not None and elsewhere.addresses:
        return f"MASTER_ADDR={elsewhere.name} is another host"
    return ""


COLLECTORS = (rendezvous,)
