"""RDMA devices from sysfs, and whether this user's processes can use them."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator, Mapping
from ipaddress import IPv6Address
from pathlib import Path

from ddoctor.collect.environment import in_force
from ddoctor.evidence.network import Gid, Rdma, RdmaDevice, RdmaPort, VerbsNode
from ddoctor.proc.files import number, text

DMA_BUF_KERNEL = (5, 12)
"""The first Linux whose RDMA core takes DMA-BUFs; open NVIDIA modules are needed as well.

Source: NVIDIA GPU Operator, "GPUDirect RDMA"; NCCL user guide, troubleshooting of GPUs.
"""
PEER_MEMORY_FILES = {
    "nvidia_peermem": "sys/module/nvidia_peermem/version",
    "nv_mem": "sys/kernel/mm/memory_peers/nv_mem/version",
    "nv_mem_nc": "sys/kernel/mm/memory_peers/nv_mem_nc/version",
}
"""The paths that NCCL searches: src/transport/net_ib/gdr.cc."""


def rdma(root: Path = Path("/")) -> Rdma:
    """Devices from sysfs; libibverbs is loaded and queried, as NCCL does it."""
    settings = {name: value for name, (_, value) in in_force(root=root).items()}
    library, offered = verbs(settings)
    dma_buf, reason = dma_buf_export(root, platform.release())
    # Where the EFA installer and AWS's images put the plug-in.
    places = ("opt/amazon/ofi-nccl", "opt/aws-ofi-nccl")
    aside = (path for place in places for path in sorted((root / place).rglob("libnccl-net*.so")))
    return Rdma(
        devices=tuple(devices(root)),
        verbs_nodes=tuple(verbs_nodes(root)),
        libibverbs=library,
        verbs_devices=offered,
        net_plugin=net_plugin(settings, root),
        net_plugin_aside=next((f"/{path.relative_to(root)}" for path in aside), None),
        peer_memory=next(
            (name for name, path in PEER_MEMORY_FILES.items() if (root / path).exists()), None
        ),
        dma_buf=dma_buf,
        dma_buf_reason=reason,
        nccl_ib_hca=settings.get("NCCL_IB_HCA"),
        nccl_ib_gid_index=settings.get("NCCL_IB_GID_INDEX"),
        nccl_net_plugin=settings.get("NCCL_NET_PLUGIN"),
    )


def devices(root: Path) -> Iterator[RdmaDevice]:
    """Every device of /sys/class/infiniband, in the order of their names."""
    for folder in _sorted(root / "sys/class/infiniband"):
        physical = folder / "device"
        driver = physical / "driver"
        yield RdmaDevice(
            name=folder.name,
            bus_id=physical.resolve().name if physical.exists() else "",
            driver=driver.resolve().name if driver.exists() else "",
            numa_node=number(physical / "numa_node"),
            board=text(folder / "board_id"),
            firmware=text(folder / "fw_ver"),
            ports=tuple(_port(port) for port in _sorted(folder / "ports")),
        )


def verbs_nodes(root: Path) -> Iterator[VerbsNode]:
    """Device nodes, each opened and closed: a container may show one and still refuse it."""
    for path in _sorted(root / "dev/infiniband"):
        if path.name.startswith("uverbs"):
            yield VerbsNode(path=f"/{path.relative_to(root)}", refused=_refusal(path))


def verbs(settings: Mapping[str, str]) -> tuple[str | None, tuple[str, ...] | None]:
    """The libibverbs that NCCL would load (src/misc/ibvsymbols.cc), and the devices it offers."""
    for name in (settings.get("NCCL_IBVERBS_LIB"), "libibverbs.so", "libibverbs.so.1"):
        if not name:
            continue
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        return name, _offered(library)
    return None, None


def net_plugin(settings: Mapping[str, str], root: Path) -> str | None:
    """The network plug-in that NCCL's loader would find (src/plugin/plugin_open.cc), not loaded."""
    wanted = settings.get("NCCL_NET_PLUGIN")
    names = (wanted, f"libnccl-net-{wanted}.so") if wanted else ("libnccl-net.so",)
    for name in names:
        if "/" in name:
            return name if (root / name.lstrip("/")).exists() else None
        for folder in _loader_folders(settings, root):
            if (root / folder.lstrip("/") / name).exists():
                return f"{folder.rstrip('/')}/{name}"
    return None


def dma_buf_export(root: Path, release: str) -> tuple[bool | None, str]:
    """Whether kernel and NVIDIA driver can export GPU memory as DMA-BUF, and why."""
    driver = text(root / "proc/driver/nvidia/version")
    if not driver:
        return None, "no NVIDIA driver is loaded"
    if "Open Kernel Module" not in driver:
        return False, "the NVIDIA kernel modules are not the open ones"
    major, minor = (int(part) for part in release.split(".")[:2])
    if (major, minor) >= DMA_BUF_KERNEL:
        return True, f"open NVIDIA kernel modules on kernel {release}"
    if ".el8" in release:
        return (
            None,
            f"the version of Red Hat's kernel {release} does not show whether it supports DMA-BUF",
        )
    return False, f"kernel {release} is older than {'.'.join(map(str, DMA_BUF_KERNEL))}"


def _port(folder: Path) -> RdmaPort:
    # "4: ACTIVE", "5: LinkUp" and "400 Gb/sec (4X NDR)".
    rate = text(folder / "rate").partition(" ")[0]
    link_layer = text(folder / "link_layer")
    gids = tuple(_gids(folder, link_layer))
    return RdmaPort(
        number=int(folder.name),
        state=text(folder / "state").rpartition(": ")[2],
        physical_state=text(folder / "phys_state").rpartition(": ")[2],
        rate=float(rate) if rate.replace(".", "", 1).isdecimal() else None,
        link_layer=link_layer,
        interface=next((gid.interface for gid in gids if gid.interface), ""),
        gids=gids if (folder / "gids").is_dir() else None,
    )


def _gids(folder: Path, link_layer: str) -> Iterator[Gid]:
    for path in _sorted(folder / "gids"):
        # Rows that are empty, or of another container, cannot be read or are all zero.
        told = text(path)
        if not told or int(told.replace(":", ""), 16) == 0:
            continue
        address = IPv6Address(told)
        second = text(folder / "gid_attrs/types" / path.name) == "RoCE v2"
        yield Gid(
            index=int(path.name),
            gid=str(address),
            kind="RoCE v2" if second else "IB" if link_layer == "InfiniBand" else "RoCE v1",
            ipv4=str(address.ipv4_mapped) if address.ipv4_mapped else None,
            interface=text(folder / "gid_attrs/ndevs" / path.name),
        )


def _offered(library: ctypes.CDLL) -> tuple[str, ...] | None:
    count = ctypes.c_int()
    try:
        library.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
        library.ibv_get_device_name.restype = ctypes.c_char_p
        found = library.ibv_get_device_list(ctypes.byref(count))
    except AttributeError:
        return None
    if not found:
        return ()
    names = [library.ibv_get_device_name(ctypes.c_void_p(found[i])) for i in range(count.value)]
    library.ibv_free_device_list(found)
    return tuple(sorted(name.decode() for name in names))


def _loader_folders(settings: Mapping[str, str], root: Path) -> Iterator[str]:
    yield from filter(None, settings.get("LD_LIBRARY_PATH", "").split(":"))
    for path in (root / "etc/ld.so.conf", *_sorted(root / "etc/ld.so.conf.d")):
        yield from (line for line in text(path).split("\n") if line.startswith("/"))
    yield from (f"/lib/{platform.machine()}-linux-gnu", f"/usr/lib/{platform.machine()}-linux-gnu")
    yield from ("/lib64", "/usr/lib64", "/lib", "/usr/lib")


def _refusal(path: Path) -> str:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _sorted(folder: Path) -> list[Path]:
    """What is in a folder, mlx5_10 after mlx5_9; nothing where there is no folder."""
    try:
        return sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name))
    except OSError:
        return []


COLLECTORS = (rdma,)
