"""The sample p2pBandwidthLatencyTest of CUDA: copies between GPUs, without and with peer access."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.evidence.printed import PairBandwidth, PeerBandwidth
from ddoctor.reading.machine.kind import Kind

# NVIDIA/cuda-samples, p2pBandwidthLatencyTest.cu
TABLE = re.compile(r"^(?P<way>Uni|Bi)directional P2P=(?P<peer>Disabled|Enabled) Bandwidth")
COLUMNS = re.compile(r"^ *D\\D((?: +\d{1,3})+)$")
ROW = re.compile(r"^ *(\d{1,3})((?: +\d{1,7}\.\d{1,4})+)$")
MOST_GPUS = 64


def _read(lines: Sequence[str]) -> Iterator[PeerBandwidth]:
    """Read the tables of one direction, which most outputs hold first."""
    found: dict[bool, dict[tuple[int, int], float]] = {}
    table: dict[tuple[int, int], float] | None = None
    columns: list[str] = []
    for line in lines:
        if title := TABLE.match(line):
            peer = title["peer"] == "Enabled"
            table = found.setdefault(peer, {}) if title["way"] == "Uni" else None
        elif "Latency" in line or "Connectivity" in line:
            table = None
        elif names := COLUMNS.match(line):
            columns = names[1].split()
        elif table is not None and (row := ROW.match(line)):
            rates = row[2].split()
            for column, rate in zip(columns[:MOST_GPUS], rates, strict=False):
                table[int(row[1]), int(column)] = float(rate)
    through_host, direct = found.get(False, {}), found.get(True, {})
    pairs = tuple(
        PairBandwidth(a=a, b=b, through_host=through_host[a, b], direct=direct[a, b])
        for a, b in sorted(through_host.keys() & direct.keys())
        if a != b
    )
    if pairs:
        yield PeerBandwidth(pairs=pairs)


KIND = Kind(
    name="p2pBandwidthLatencyTest",
    holds=("gpu bandwidth latency test]", "directional p2p="),
    begins=re.compile(r"^\[P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test\]|^Unidirectional P2P="),
    goes_on=re.compile(
        r"^Device[:=]|^\*\*\*NOTE|^So you can see|^P2P|^(?:Uni|Bi)directional P2P="
        r"|^ *(?:D\\D|GPU|CPU|\d{1,3}) |^NOTE:"
    ),
    read=_read,
    fewest=4,
)
