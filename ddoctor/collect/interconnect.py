"""The links between a host's GPUs: PCIe, NVLink, the NVSwitch fabric, and peer access."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import get_args

from ddoctor import knowledge
from ddoctor.collect.nvml import NvmlDevice, bus_id_of, error_name
from ddoctor.evidence.gpus import FabricState, NvLink, PcieLink, PeerPath
from ddoctor.evidence.known_hardware import NvmlNames

FABRIC_STATES: tuple[FabricState, ...] = get_args(FabricState)
P2P_READ, P2P_NVLINK = 0, 2
"""pynvml's constant for the first is a tuple, because of a stray comma."""


def pcie_link(device: NvmlDevice, bus_id: str, root: Path) -> PcieLink:
    ask = device.ask
    path = (root / "sys/bus/pci/devices" / bus_id).resolve() if bus_id else Path()
    above = [part for part in path.parts[:-1] if part.count(":") == 2]
    return PcieLink(
        generation=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        maximum_generation=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        maximum_width=ask("nvmlDeviceGetMaxPcieLinkWidth"),
        replays=ask("nvmlDeviceGetPcieReplayCounter"),
        upstream=tuple(above),
    )


def nvlinks(device: NvmlDevice) -> tuple[NvLink, ...] | None:
    import pynvml

    links = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        active = device.ask("nvmlDeviceGetNvLinkState", link)
        if active is None:
            continue
        counters = (
            device.ask("nvmlDeviceGetNvLinkErrorCounter", link, counter)
            for counter in (
                pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
                pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
                pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
                pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA,
            )
        )
        known = [count for count in counters if count is not None]
        links.append(
            NvLink(
                index=link,
                active=bool(active),
                remote=_remote(device, link) if active else "",
                errors=sum(known) if known else None,
            )
        )
    return tuple(links) or None


def _remote(device: NvmlDevice, link: int) -> str:
    import pynvml

    kind = device.ask("nvmlDeviceGetNvLinkRemoteDeviceType", link)
    if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return "switch"
    if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU:
        return "cpu"
    return bus_id_of(device.ask("nvmlDeviceGetNvLinkRemotePciInfo", link))


def fabric(device: NvmlDevice) -> tuple[FabricState | None, str, tuple[str, ...]]:
    import pynvml

    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    if device.ask("nvmlDeviceGetGpuFabricInfoV", pynvml.byref(info)) is None:
        return None, "", ()
    if info.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED:
        return FABRIC_STATES[info.state], "", ()
    names = knowledge.load(NvmlNames).fabric_trouble
    trouble = [name for bit, name in names if info.healthMask >> bit & 0x3 == 1]
    if info.healthMask >> 8 & 0xF > 1:
        trouble.append("incorrect_configuration")
    status = error_name(info.status) if info.status else ""
    return "completed", status, tuple(trouble)


def peers(devices: Sequence[NvmlDevice]) -> tuple[PeerPath, ...] | None:
    known, paths = knowledge.load(NvmlNames), []
    for a, b in combinations(devices, 2):
        read = a.ask("nvmlDeviceGetP2PStatus", b.handle, P2P_READ)
        if read is None:
            continue
        over_nvlink = a.ask("nvmlDeviceGetP2PStatus", b.handle, P2P_NVLINK) == 0
        level = a.ask("nvmlDeviceGetTopologyCommonAncestor", b.handle)
        paths.append(
            PeerPath(
                a=a.index,
                b=b.index,
                path="nvlink" if over_nvlink else dict(known.paths).get(level, ""),
                read=known.peer_statuses[read] if read < len(known.peer_statuses) else "unknown",
            )
        )
    return tuple(paths) or None
