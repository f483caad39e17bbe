"""Where and as how many the hosts of a run meet, in torchrun's words."""

from __future__ import annotations

import socket
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from ddoctor.errors import DoctorError

PORT = 29400
"""Of an endpoint without one, as in torchrun."""
MASTER_PORT = 29500
KINDS_OF_RANKS = ("auto", "gpu", "cpu")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where the hosts meet, as this one was told."""

    address: str
    port: int
    hosts: int
    node_rank: int | None
    """None: the numbers are given out by the host of the endpoint."""
    run: str
    limit: float
    """Seconds to wait for the others."""
    host_it: bool
    """The endpoint is on this host."""

    @property
    def endpoint(self) -> str:
        """As it was written."""
        return f"{self.address}:{self.port}"


class Parser(ArgumentParser):
    """A mistake is one line."""

    def error(self, message: str) -> NoReturn:
        raise DoctorError(f"{message}; see `ddoctor probe --help`")


def launcher() -> Parser:
    """The options that both torchrun and `ddoctor probe` have."""
    options = Parser(add_help=False, allow_abbrev=False)
    group = options.add_argument_group("as torchrun is told")
    group.add_argument("--nnodes", metavar="N", default="1", help="how many hosts (1)")
    group.add_argument(
        "--nproc-per-node", metavar="G", help="ranks per host (one per GPU; 2 without)"
    )
    group.add_argument(
        "--rdzv-endpoint", metavar="HOST:PORT", help="one of the hosts, and a free port there"
    )
    group.add_argument("--master-addr", metavar="HOST", help="the same in two words")
    group.add_argument("--master-port", metavar="PORT", help=f"({MASTER_PORT})")
    group.add_argument(
        "--node-rank", metavar="R", help="this host's number, 0 at the endpoint (given out)"
    )
    group.add_argument("--rdzv-id", metavar="NAME", default="none", help="the name of the run")
    group.add_argument(
        "--rdzv-backend", metavar="c10d|static", choices=("c10d", "static"), help="either is met"
    )
    group.add_argument("--standalone", action="store_true", help="this host alone")
    return options


def arranged(arguments: Namespace) -> Endpoint | None:
    """Where the hosts meet; None: this one is all there is.

    Raises:
        DoctorError: the numbers or the endpoint make no sense.
    """
    if ":" in arguments.nnodes:
        raise DoctorError(
            f"--nnodes {arguments.nnodes} is a range, and the probes need one number: that of all "
            "hosts"
        )
    hosts = _number("--nnodes", arguments.nnodes, 1)
    ranks = arguments.nproc_per_node
    if ranks is not None and ranks not in KINDS_OF_RANKS:
        _number("--nproc-per-node", ranks, 1)
    given = arguments.node_rank is not None
    node_rank = _number("--node-rank", arguments.node_rank, 0, hosts - 1) if given else None
    endpoint = _endpoint(arguments)
    if arguments.standalone and hosts > 1:
        raise DoctorError("--standalone is one host: leave it out, or --nnodes")
    if hosts == 1:
        return None
    if endpoint is None:
        raise DoctorError(
            f"--nnodes {hosts} needs a place where the hosts meet: --rdzv-endpoint HOST:PORT, with "
            "the name of one of them"
        )
    address, port = endpoint
    if address == "localhost" or address.startswith("127.") or address == "::1":
        raise DoctorError(
            f"{address} is another host on each of {hosts}: name one of them as the others see it"
        )
    by_number = arguments.master_addr is not None and node_rank is not None
    return Endpoint(
        address=address,
        port=port,
        hosts=hosts,
        node_rank=node_rank,
        run=arguments.rdzv_id,
        limit=arguments.join_timeout,
        host_it=node_rank == 0 if by_number else is_here(address),
    )


def _endpoint(arguments: Namespace) -> tuple[str, int] | None:
    told, master = arguments.rdzv_endpoint, arguments.master_addr
    if told is not None and master is not None:
        raise DoctorError("--rdzv-endpoint and --master-addr exclude each other: give one of them")
    if master is not None:
        if not master:
            raise DoctorError("--master-addr is empty: give the name of the first host")
        port = arguments.master_port or str(MASTER_PORT)
        return master, _number("--master-port", port, 1, 65535)
    if arguments.master_port is not None:
        raise DoctorError("--master-port needs --master-addr, or give --rdzv-endpoint HOST:PORT")
    if told is None:
        return None
    host, colon, port = told.rpartition(":")
    if not colon or told.endswith("]"):
        host, port = told, str(PORT)
    host = host.strip("[]")
    if not host:
        raise DoctorError(f"--rdzv-endpoint {told!r} names no host: give HOST:PORT")
    return host, _number(f"the port of --rdzv-endpoint {told}", port, 1, 65535)


def _number(name: str, text: str, least: int, most: int | None = None) -> int:
    number = int(text) if text.isdecimal() else -1
    if number < least or (most is not None and number > most):
        bounds = f"from {least} on" if most is None else f"from {least} to {most}"
        raise DoctorError(f"{name} should be a number {bounds}, not {text!r}")
    return number


def is_here(address: str) -> bool:
    """Whether a name or an address is one of this host's own: it can be bound."""
    for found in resolved(address):
        family = socket.AF_INET6 if ":" in found else socket.AF_INET
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind((found, 0))
            return True
    return False


def resolved(name: str) -> tuple[str, ...]:
    """The addresses that a name means here; none: it does not resolve."""
    try:
        rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(row[4][0]) for row in rows))
