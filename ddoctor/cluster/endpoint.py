"""The rendezvous endpoint, from torchrun's options."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from ddoctor.errors import DoctorError

PORT = 29400
"""Default port of --rdzv-endpoint, the same as torchrun's."""
MASTER_PORT = 29500
KINDS_OF_RANKS = ("auto", "gpu", "cpu")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """The rendezvous endpoint and its settings, from the options on this host."""

    address: str
    port: int
    hosts: int
    node_rank: int | None
    """None: the host of the endpoint assigns it."""
    run: str
    limit: float
    """Seconds to wait for the other hosts."""
    host_it: bool
    """Whether the endpoint is on this host."""

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class TorchrunOptions:
    """The options of torchrun that `ddoctor probe` also takes."""

    nnodes: Annotated[str, typer.Option(metavar="N", help="torchrun: number of hosts.")] = "1"
    nproc_per_node: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="torchrun: ranks per host; default: one per GPU, or 2 without GPUs."
        ),
    ] = None
    rdzv_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="torchrun: rendezvous on one of the hosts, at a free port."
        ),
    ] = None
    master_addr: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="torchrun: first host, instead of --rdzv-endpoint."),
    ] = None
    master_port: Annotated[
        str | None,
        typer.Option(
            metavar="PORT", help=f"torchrun: port of --master-addr; default: {MASTER_PORT}."
        ),
    ] = None
    node_rank: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="torchrun: number of this host; 0 is the endpoint. Default: assigned.",
        ),
    ] = None
    rdzv_id: Annotated[str, typer.Option(metavar="NAME", help="torchrun: name of the run.")] = (
        "none"
    )
    rdzv_backend: Annotated[
        Literal["c10d", "static"] | None,
        typer.Option(help="torchrun: accepted, but has no effect here."),
    ] = None
    standalone: Annotated[bool, typer.Option("--standalone", help="torchrun: this host only.")] = (
        False
    )


def arranged(arguments: TorchrunOptions, join_timeout: float) -> Endpoint | None:
    """The endpoint of the rendezvous; None: the run has only this host.

    Raises:
        DoctorError: a number or the endpoint is wrong or missing.
    """
    if ":" in arguments.nnodes:
        raise DoctorError(
            f"--nnodes {arguments.nnodes} is a range, but the probes need the number of all hosts"
        )
    hosts = _number("--nnodes", arguments.nnodes, 1)
    ranks = arguments.nproc_per_node
    if ranks is not None and ranks not in KINDS_OF_RANKS:
        _number("--nproc-per-node", ranks, 1)
    number = arguments.node_rank
    node_rank = None if number is None else _number("--node-rank", number, 0, hosts - 1)
    endpoint = _endpoint(arguments)
    if arguments.standalone and hosts > 1:
        raise DoctorError("--standalone means one host: leave out --standalone or --nnodes")
    if hosts == 1:
        return None
    if endpoint is None:
        raise DoctorError(
            f"--nnodes {hosts} needs a rendezvous: give --rdzv-endpoint HOST:PORT, where HOST is "
            "one of the hosts"
        )
    address, port = endpoint
    if address == "localhost" or address.startswith("127.") or address == "::1":
        raise DoctorError(
            f"{address} is a different machine on each of {hosts} hosts: give the host name or "
            "address that the other hosts use"
        )
    by_number = arguments.master_addr is not None and node_rank is not None
    return Endpoint(
        address=address,
        port=port,
        hosts=hosts,
        node_rank=node_rank,
        run=arguments.rdzv_id,
        limit=join_timeout,
        host_it=node_rank == 0 if by_number else is_here(address),
    )


def _endpoint(arguments: TorchrunOptions) -> tuple[str, int] | None:
    endpoint, master = arguments.rdzv_endpoint, arguments.master_addr
    if endpoint is not None and master is not None:
        raise DoctorError("--rdzv-endpoint and --master-addr exclude each other: give one of them")
    if master is not None:
        if not master:
            raise DoctorError("--master-addr is empty: give the name of the first host")
        port = arguments.master_port or str(MASTER_PORT)
        return master, _number("--master-port", port, 1, 65535)
    if arguments.master_port is not None:
        raise DoctorError("--master-port needs --master-addr, or give --rdzv-endpoint HOST:PORT")
    if endpoint is None:
        return None
    host, colon, port = endpoint.rpartition(":")
    if not colon or endpoint.endswith("]"):
        host, port = endpoint, str(PORT)
    host = host.strip("[]")
    if not host:
        raise DoctorError(f"--rdzv-endpoint {endpoint!r} names no host: give HOST:PORT")
    return host, _number(f"the port of --rdzv-endpoint {endpoint}", port, 1, 65535)


def _number(name: str, text: str, least: int, most: int | None = None) -> int:
    number = int(text) if text.isdecimal() else -1
    if number < least or (most is not None and number > most):
        bounds = f"from {least} up" if most is None else f"from {least} to {most}"
        raise DoctorError(f"{name} must be a number {bounds}, not {text!r}")
    return number


def is_here(address: str) -> bool:
    """Whether a name or address belongs to this host, so that a socket can bind to it."""
    import socket

    for found in resolved(address):
        family = socket.AF_INET6 if ":" in found else socket.AF_INET
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind((found, 0))
            return True
    return False


def resolved(name: str) -> tuple[str, ...]:
    """The addresses of a name on this host; empty: it does not resolve."""
    import socket

    try:
        rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(row[4][0]) for row in rows))
