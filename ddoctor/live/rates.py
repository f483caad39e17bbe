"""The disk and network rates of this host during the sampling."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from ddoctor.evidence.live import DiskTraffic, HostRates, InterfaceTraffic

MIB = 2**20
MILLISECONDS = 1000
LOOPBACK = "lo"
# Whole disks: a partition's traffic also counts for its disk.
DISKS = Path("/sys/block")


class Rates:
    """Counts from its creation on."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._disks = _disks()
        self._interfaces = psutil.net_io_counters(pernic=True)

    def summary(self) -> HostRates:
        """Return the rates since then."""
        seconds = max(time.monotonic() - self._began, 1e-3)
        return HostRates(
            seconds=round(seconds, 1),
            load=round(os.getloadavg()[0], 2),
            disks=tuple(self._moved(seconds)),
            interfaces=tuple(self._sent(seconds)),
        )

    def _moved(self, seconds: float) -> Iterator[DiskTraffic]:
        for name, now in sorted(_disks().items()):
            before = self._disks.get(name)
            if before is None or now.busy_time <= before.busy_time or not (DISKS / name).exists():
                continue
            busy = (now.busy_time - before.busy_time) / MILLISECONDS / seconds
            yield DiskTraffic(
                name=name,
                busy=round(min(1.0, busy), 3),
                read=round((now.read_bytes - before.read_bytes) / MIB / seconds, 2),
                written=round((now.write_bytes - before.write_bytes) / MIB / seconds, 2),
            )

    def _sent(self, seconds: float) -> Iterator[InterfaceTraffic]:
        for name, now in sorted(psutil.net_io_counters(pernic=True).items()):
            before = self._interfaces.get(name)
            if before is None or name == LOOPBACK:
                continue
            received = (now.bytes_recv - before.bytes_recv) / MIB / seconds
            sent = (now.bytes_sent - before.bytes_sent) / MIB / seconds
            if received > 0 or sent > 0:
                yield InterfaceTraffic(name=name, received=round(received, 3), sent=round(sent, 3))


def _disks() -> Mapping[str, Any]:
    """Return psutil's counters of each disk; empty: the kernel has none."""
    with suppress(NotImplementedError, OSError):
        return psutil.disk_io_counters(perdisk=True) or {}
    return {}
