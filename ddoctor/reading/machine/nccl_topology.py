"""The file of NCCL_TOPO_DUMP_FILE: GPUs by socket and PCIe switch, their links and lanes.

NCCL, src/graph/xml.cc and topo.cc: an element per line, as NCCL writes it; nothing else of XML is
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ddoctor.evidence.gpus import Gpu, Gpus, NvLink, PcieLink, PeerPath
from ddoctor.reading.machine.kind import Kind, bus_id, number

ELEMENT = re.compile(r"<(?P<end>/?)(?P<name>\w{1,20})(?P<given>[^<>]{0,2000})>")
ATTRIBUTE = re.compile(r'(\w{1,40})="([^"]{0,200})"')
GENERATIONS = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16": 4, "16.0": 4, "32": 5}
GENERATIONS |= {"32.0": 5, "64": 6, "64.0": 6}
"""By the gigatransfers per second of a lane."""
SWITCH = "0x068000"
"""The PCI class of an NVSwitch."""


@dataclass(frozen=True)
class _Device:
    """A GPU, with the elements around it, the outermost first."""

    index: int
    around: Sequence[tuple[str, Mapping[str, str]]]
    links: int
    """NVLinks to switches."""

    @property
    def own(self) -> Mapping[str, str]:
        """What its PCI element says."""
        return self.around[-1][1] if self.around else {}

    def of(self, name: str) -> Mapping[str, str]:
        """The innermost element of this name around it."""
        return next((given for kind, given in reversed(self.around) if kind == name), {})


def _read(lines: Sequence[str]) -> Iterator[Gpus]:
    devices = {one.index: one for one in _devices(lines)}
    if not devices:
        return
    widths: dict[str, int] = {}
    for one in devices.values():
        name = _name(one)
        widths[name] = max(widths.get(name, 0), number(one.own.get("link_width", "")) or 0)
    yield Gpus(
        gpus=tuple(_gpu(one, widths[_name(one)]) for _, one in sorted(devices.items())),
        peers=tuple(
            PeerPath(a=a, b=b, path=_path(devices[a], devices[b]), read="unknown")
            for a, b in combinations(sorted(devices), 2)
        ),
    )


def _devices(lines: Sequence[str]) -> Iterator[_Device]:
    around: list[tuple[str, Mapping[str, str]]] = []
    gpu: tuple[int, list[tuple[str, Mapping[str, str]]]] | None = None
    links = 0
    for line in lines:
        match = ELEMENT.match(line.strip())
        if match is None:
            continue
        given = dict(ATTRIBUTE.findall(match["given"]))
        closed = match["given"].endswith("/")
        if match["end"]:
            if match["name"] == "gpu" and gpu is not None:
                yield _Device(gpu[0], gpu[1], links)
                gpu = None
            elif around and around[-1][0] == match["name"]:
                around.pop()
        elif match["name"] == "gpu":
            index, links = number(given.get("dev", "")), 0
            gpu = (index, [*around]) if index is not None and index < 1024 else None
            if closed and gpu is not None:
                yield _Device(gpu[0], gpu[1], 0)
                gpu = None
        elif match["name"] == "nvlink" and gpu is not None:
            links += (number(given.get("count", "")) or 0) * (given.get("tclass") == SWITCH)
        elif match["name"] in ("cpu", "pci") and not closed:
            around.append((match["name"], given))


def _name(device: _Device) -> str:
    return f"{device.own.get('vendor', '')}:{device.own.get('device', '')}"


def _gpu(device: _Device, most: int) -> Gpu:
    speed = device.own.get("link_speed", "").partition(" ")[0]
    return Gpu(
        index=device.index,
        name=_name(device),
        memory_total=0,
        memory_used=0,
        bus_id=bus_id(device.own.get("busid", "")),
        numa_node=number(device.of("cpu").get("numaid", "")),
        pcie=PcieLink(
            generation=GENERATIONS.get(speed),
            width=number(device.own.get("link_width", "")),
            # Of GPUs that are alike, each could have the lanes of any other.
            maximum_width=most or None,
        ),
        nvlinks=tuple(
            NvLink(index=link, active=True, remote="switch")
            for link in range(min(device.links, 64))
        )
        or None,
    )


def _path(a: _Device, b: _Device) -> str:
    if a.links and b.links:
        return "nvlink"
    if a.of("cpu") != b.of("cpu"):
        return "system"
    # Above the GPU's own element is the switch that it hangs on, if there is one.
    above = [one.around[-2] if len(one.around) > 1 else None for one in (a, b)]
    same = above[0] == above[1] and above[0] is not None and above[0][0] == "pci"
    return "pcie-switch" if same else "host-bridge"


KIND = Kind(
    name="NCCL_TOPO_DUMP_FILE",
    holds=("<system version=",),
    begins=re.compile(r'^\s*<system version="\d'),
    goes_on=re.compile(r"^\s*</?\w{1,20}[ />]"),
    read=_read,
)
