"""Read NCCL's choices from its log (NCCL_DEBUG=INFO with INIT, GRAPH, TUNING, NET and P2P)."""

from __future__ import annotations

import re
from typing import NamedTuple

SETTINGS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,TUNING,NET,P2P,SHM"}

# src/enqueue.cc: "AllReduce: 268435456 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}";
# NCCL before about 2.25 writes the number of the algorithm, and no name of the collective.
_ALGORITHM = re.compile(r"(?:AllReduce: |INFO )(\d+) Bytes -> Algo (\w+)")
_NUMBERED = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
# src/transport/*.cc: "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "… [send] via NET/IB/0/GDRDMA".
_TRANSPORT = re.compile(r"Channel .* via (\S+)")
_VERSION = re.compile(r"NCCL version (\S+?)\+")


class Chosen(NamedTuple):
    """NCCL's choices; a field is empty if the log does not contain it."""

    algorithm: str
    """Algorithm of the largest all-reduce; only rank 0 logs it."""
    transports: tuple[str, ...]
    version: str


def read(text: str) -> Chosen:
    """Read one rank's log."""
    sizes = {int(size): name for size, name in _ALGORITHM.findall(text)}
    algorithm = sizes[max(sizes)].lower() if sizes else ""
    if algorithm.isdigit():
        number = int(algorithm)
        algorithm = _NUMBERED[number] if number < len(_NUMBERED) else ""
    version = _VERSION.search(text)
    return Chosen(
        algorithm=algorithm,
        transports=tuple(sorted(set(_TRANSPORT.findall(text)))),
        version=version[1] if version else "",
    )
