"""`nvidia-smi topo -m`: the paths between GPUs, and the NUMA node of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from ddoctor.evidence.gpus import Gpu, Gpus, NvLink, PeerPath
from ddoctor.reading.machine.kind import Kind

# The levels of `nvidia-smi topo -m`, as its legend explains them.
PATHS = {
    "PIX": "pcie-switch",
    "PXB": "pcie-switch",
    "PHB": "host-bridge",
    "NODE": "numa-node",
    "SYS": "system",
}
COLUMN = re.compile(r"GPU\d{1,3}\b|NIC\d{1,3}\b|mlx\w{1,30}|CPU Affinity|GPU NUMA ID|NUMA Affinity")
DEVICE = re.compile(r"GPU(\d{1,3})")
NVLINK = re.compile(r"NV(\d{1,3})")

FEWEST_LINKS = 6
"""Links of a GPU to NVSwitches: 6 of V100, 12 of A100, 18 of H100."""
FEWEST_GPUS = 3
"""GPUs with that many links to each other: bridges connect two, or four with fewer links."""


def _read(lines: Sequence[str]) -> Iterator[Gpus]:
    columns = COLUMN.findall(lines[0])
    devices = [one for one in columns if not one.endswith(("Affinity", "ID"))]
    cells: dict[tuple[int, int], str] = {}
    nodes: dict[int, int | None] = {}
    for line in lines[1:]:
        name, *row = line.split() or [""]
        if (own := DEVICE.fullmatch(name)) is None or len(row) < len(devices):
            continue
        index = int(own[1])
        for device, cell in zip(devices, row, strict=False):
            if other := DEVICE.fullmatch(device):
                cells[index, int(other[1])] = cell
        more = row[len(devices) :]
        node = more[1] if len(more) > 1 and "NUMA Affinity" in columns else ""
        nodes[index] = int(node) if node.isascii() and node.isdigit() and len(node) < 4 else None
    if len(nodes) < 2:
        return
    links = _links(cells)
    yield Gpus(
        gpus=tuple(
            Gpu(
                index=index,
                name="",
                memory_total=0,
                memory_used=0,
                nvlinks=links.get(index),
                numa_node=node,
            )
            for index, node in sorted(nodes.items())
        ),
        peers=tuple(
            PeerPath(a=a, b=b, path=path, read="unknown")
            for a, b in combinations(sorted(nodes), 2)
            if (path := _path(cells.get((a, b), "")))
        ),
    )


def _path(cell: str) -> str:
    return "nvlink" if NVLINK.fullmatch(cell) else PATHS.get(cell, "")


def _links(cells: Mapping[tuple[int, int], str]) -> Mapping[int, tuple[NvLink, ...]]:
    """The links of each GPU, where all lead to NVSwitches: else some may lead to unseen GPUs."""
    counts: dict[int, list[int]] = {}
    for (a, b), cell in cells.items():
        if a != b:
            told = NVLINK.fullmatch(cell)
            counts.setdefault(a, []).append(int(told[1]) if told else 0)
    most = max((max(row) for row in counts.values()), default=0)
    full = [index for index, row in counts.items() if row.count(most) >= FEWEST_GPUS - 1]
    if most < FEWEST_LINKS or 2 * len(full) <= len(counts):
        return {}
    return {
        index: tuple(NvLink(index=link, active=True, remote="switch") for link in range(max(row)))
        for index, row in counts.items()
    }


KIND = Kind(
    name="nvidia-smi topo -m",
    holds=("cpu affinity",),
    begins=re.compile(r"^\s*GPU0\s.*\bCPU Affinity\b"),
    goes_on=re.compile(
        r"^(?:(?:GPU|NIC)\d{1,3}|mlx\w{1,30})\s.*\bX\b|^(?:NIC )?Legend:|^  NIC\d{1,3}: "
        r"|^  (?:X|SYS|NODE|PHB|PXB|PIX|NV#)\s+= "
    ),
    read=_read,
)
