"""Prometheus metrics: the server, and those of `ddoctor attach --watch --prometheus`."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import start_http_server
from prometheus_client.registry import Collector, CollectorRegistry

from ddoctor.analysis.live_state import LiveState
from ddoctor.errors import DoctorError
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.section import Evidence
from ddoctor.models import Report

LOCAL = "127.0.0.1"
PORTS = range(1, 65536)
GAUGES = {
    "phase_share": ("Share of the sampled time in a phase, 0 to 1.", "rank", "phase"),
    "stands": ("1 if every sample of the rank was at the same place.", "rank"),
    "main_thread_cpu": ("CPUs that the main thread kept busy, 0 to 1.", "rank"),
    "resident_bytes": ("Resident memory of the rank.", "rank"),
    "finding": ("1 if the cause was found.", "cause", "severity", "ranks"),
}
"""Help text and labels by name."""


class Server(Collector):
    """Serves what ``collect`` returns."""

    def __init__(self, where: str) -> None:
        """Listen at ``where``: a port of the loopback address, or ADDRESS:PORT.

        Raises:
            DoctorError: ``where`` is malformed, or the port is in use.
        """
        address, port = place(where)
        registry = CollectorRegistry()
        registry.register(self)
        try:
            start_http_server(port, address, registry)
        except OSError as error:
            raise DoctorError(f"--prometheus {where}: {error.strerror or error}") from error


def place(where: str) -> tuple[str, int]:
    """Return the address and port of ``--prometheus``.

    Raises:
        DoctorError: there is no port.
    """
    address, _, port = where.rpartition(":")
    if not port.isdecimal() or int(port) not in PORTS:
        raise DoctorError(f"--prometheus: no port from 1 to 65535 in '{where}'")
    return address.strip("[]") or LOCAL, int(port)


def check(where: str) -> None:
    """Check that it is possible to listen there now.

    Raises:
        DoctorError: ``where`` is malformed, or the port is in use.
    """
    address, port = place(where)
    try:
        family, *_, found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(found)
    except OSError as error:
        raise DoctorError(f"--prometheus {where}: {error.strerror or error}") from error


class Metrics(Server):
    """Serves the metrics of the last sample."""

    def __init__(self, where: str) -> None:
        """Listen at ``where``; DoctorError as ``Server``."""
        self._last: tuple[Report, Evidence] | None = None
        super().__init__(where)

    def show(self, report: Report, evidence: Evidence) -> None:
        """Serve the metrics of this report from now on."""
        self._last = report, evidence

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of the last sample."""
        gauges = {
            name: GaugeMetricFamily(f"ddoctor_{name}", text, labels=labels)
            for name, (text, *labels) in GAUGES.items()
        }
        if self._last is not None:
            report, evidence = self._last
            for one in LiveState.derive(evidence.all(LiveLook)).ranks:
                rank = str(one.rank)
                for phase, share in one.shares.items():
                    gauges["phase_share"].add_metric([rank, phase], share)
                busy = one.seen.main_cpu_seconds / one.seconds
                gauges["stands"].add_metric([rank], float(one.stands))
                gauges["main_thread_cpu"].add_metric([rank], busy)
                gauges["resident_bytes"].add_metric([rank], one.seen.resident * 2**20)
            for finding in report.findings:
                ranks = ",".join(map(str, finding.where.ranks))
                labels = [finding.cause, finding.severity.value, ranks]
                gauges["finding"].add_metric(labels, 1.0)
        yield from gauges.values()
