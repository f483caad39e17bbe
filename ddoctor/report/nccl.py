"""What NCCL said of itself in a log: its version, its network, and the ways between GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.evidence.log import Log
from ddoctor.evidence.section import Evidence
from ddoctor.report.places import hosts, listed

NAME = re.compile(r"\[\d+\]([^\s:<]+)")
"""An interface or device in NCCL's list of them: ``[0]eth0:10.0.0.1<0>``, ``[1]mlx5_1:1/IB``."""
LONGEST_RING = 16
"""Ranks of a ring that is shown."""


def choices(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield the rows of what NCCL chose."""
    for log in evidence.all(Log):
        library = [*_values(log, "nccl-version", "version")]
        library += [f"built for CUDA {cuda}" for cuda in _values(log, "nccl-version", "cuda")]
        library += [f"plug-in {name}" for name in _values(log, "nccl-plugin", "plugin")]
        library += [f"provider {name}" for name in _values(log, "nccl-plugin", "provider")]
        yield from _row("NCCL", library)
        yield from _row("its network", _network(log))
        yield from _row("its channels", _channels(log))


def _row(label: str, parts: list[str]) -> Iterator[tuple[str, str]]:
    if parts:
        yield label, ", ".join(parts)


def _network(log: Log) -> list[str]:
    of: dict[str, list[str]] = {}
    for event in log.of("nccl-network"):
        of.setdefault(event.values["network"], []).append(event.host)
    several = len(of) > 1
    named = [
        name + (f" ({hosts(sorted({*on}))})" if several and all(on) else "")
        for name, on in of.items()
    ]
    devices = _names(log, "nccl-devices", "devices")
    interfaces = _names(log, "nccl-interfaces", "interfaces")
    named += [f"RDMA devices {listed(devices)}"] if devices else []
    return named + ([f"interfaces {listed(interfaces)}"] if interfaces else [])


def _channels(log: Log) -> list[str]:
    ways = [
        f"{event.values['transport']} with GPUDirect RDMA"
        if "direct" in event.values
        else event.values["transport"]
        for event in log.of("nccl-transport")
    ]
    counts = [f"{count} for collectives" for count in _values(log, "nccl-channels", "channels")]
    nvls = [f"NVLS {support}" for support in _values(log, "nccl-nvls", "support")]
    rings = [
        f"ring {' '.join(ranks)}"
        for ring in _values(log, "nccl-ring", "ring")
        if len(ranks := ring.split()) <= LONGEST_RING
    ]
    connected = [f"all {graph} connected" for graph in _values(log, "nccl-connected", "graph")]
    return [*counts, *dict.fromkeys(ways), *nvls, *rings[:1], *connected]


def _values(log: Log, pattern: str, name: str) -> list[str]:
    """What the lines say under a name, each once, in their order."""
    said = (event.values.get(name) for event in log.of(pattern))
    return [*dict.fromkeys(value for value in said if value is not None)]


def _names(log: Log, pattern: str, name: str) -> list[str]:
    return [*dict.fromkeys(one for row in _values(log, pattern, name) for one in NAME.findall(row))]
