"""Test which hosts reach each other, with connections to ports opened for the test."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

from ddoctor.cluster.store import RankInfo
from ddoctor.evidence.joining import Attempt, Outcome

ATTEMPT_SECONDS = 3.0

# Up to this number, each host tries every other one. Above it, each host tries those at distances
# 1, 2, 4, 8, … in the order of their ranks, so log2(hosts) hosts try each one.
ALL_UP_TO = 16

NO_ROUTE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN}


def listen(address: str) -> int:
    """Accept and close connections while this process lives; return the port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, 0), family=family, backlog=1024)

    def take() -> None:
        while True:
            server.accept()[0].close()

    Thread(target=take, daemon=True).start()
    port: int = server.getsockname()[1]
    return port


def attempts(me: RankInfo, hosts: Sequence[RankInfo]) -> tuple[Attempt, ...]:
    """Try to connect to the ports of other hosts, all at once."""
    with ThreadPoolExecutor(max_workers=ALL_UP_TO) as pool:
        results = pool.map(lambda one: attempt(one.host, one.address, one.port), _chosen(me, hosts))
        return tuple(sorted(results, key=lambda one: one.host))


def attempt(host: str, address: str, port: int, limit: float = ATTEMPT_SECONDS) -> Attempt:
    """Try one connection, for at most ``limit`` seconds."""

    def ended(outcome: Outcome, error: str = "") -> Attempt:
        return Attempt(host=host, address=address, port=port, outcome=outcome, error=error)

    try:
        socket.create_connection((address, port), timeout=limit).close()
    except socket.gaierror as error:
        return ended("unresolved", error.strerror or str(error))
    except TimeoutError:
        return ended("timeout", f"no answer within {limit:.0f} s")
    except ConnectionRefusedError as error:
        return ended("refused", error.strerror or "")
    except OSError as error:
        outcome: Outcome = "no route" if error.errno in NO_ROUTE else "failed"
        return ended(outcome, error.strerror or str(error))
    return ended("connected")


def _chosen(me: RankInfo, hosts: Sequence[RankInfo]) -> Iterator[RankInfo]:
    others = [one for one in hosts if one.port and one.rank != me.rank]
    if len(others) < ALL_UP_TO:
        yield from others
        return
    around = sorted(others, key=lambda one: (one.rank < me.rank, one.rank))
    step = 1
    while step <= len(around):
        yield around[step - 1]
        step *= 2
