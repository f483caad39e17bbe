"""PCI devices: the GPUs, whether an IOMMU translates for them, and redirected peer requests."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddoctor.proc.files import text

# Class codes and registers: PCI Code and ID Assignment Specification; linux/pci_regs.h.
DISPLAY, ACCELERATOR = "0x03", "0x12"
NVIDIA, AMD = "0x10de", "0x1002"
"""Vendors of GPUs: the small display of a server's management controller is none."""

ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

READABLE_BY_ALL = 64
"""Bytes of configuration space that the kernel shows without CAP_SYS_ADMIN."""
PCI_EXPRESS = 0x10
DOWNSTREAM_SWITCH_PORT = 6
EXTENDED_SPACE = 0x100
ACCESS_CONTROL_SERVICES = 0x000D
REQUEST_REDIRECT, COMPLETION_REDIRECT = 0x04, 0x08


def gpus(root: Path, vendors: Sequence[str] = (NVIDIA, AMD)) -> tuple[Path, ...]:
    """The folders of the GPUs in the device tree."""
    return tuple(
        device.resolve()
        for device in sorted((root / "sys/bus/pci/devices").glob("*"))
        if text(device / "class").startswith((DISPLAY, ACCELERATOR))
        and text(device / "vendor") in vendors
    )


def iommu_groups(root: Path) -> int:
    """Number of IOMMU groups; 0 without an active IOMMU."""
    return sum(1 for _ in (root / "sys/kernel/iommu_groups").glob("*"))


def passthrough(gpus: Sequence[Path], words: Sequence[str], root: Path) -> bool | None:
    """Whether DMA is untranslated; None: there is no IOMMU, or it is not known."""
    folders = [gpu / "iommu_group" for gpu in gpus] or (root / "sys/kernel/iommu_groups").glob("*")
    kinds = {text(folder / "type") for folder in folders}
    # Also "unmanaged" and "blocked": devices that are handed to a virtual machine.
    kinds &= {"identity", "DMA", "DMA-FQ"}
    if kinds:
        return kinds == {"identity"}
    asked_for = {"iommu=pt", "iommu.passthrough=1"}.intersection(words)
    return True if asked_for and iommu_groups(root) else None


def redirecting_ports(gpus: Sequence[Path]) -> tuple[str, ...]:
    """Switch ports above a GPU that send requests for their neighbours up to the root.

    A root port is left out: what passes it has to go through the root in any case.

    Raises:
        PermissionError: the kernel shows only the first bytes of configuration space.
    """
    above = {parent for gpu in gpus for parent in gpu.parents if ADDRESS.fullmatch(parent.name)}
    return tuple(sorted(port.name for port in above if _redirects((port / "config").read_bytes())))


def _redirects(space: bytes) -> bool:
    if len(space) <= READABLE_BY_ALL:
        raise PermissionError("configuration space beyond 64 bytes is shown to root only")
    if _port_type(space) != DOWNSTREAM_SWITCH_PORT:
        return False
    return any(
        struct.unpack_from("<H", space, offset + 6)[0] & (REQUEST_REDIRECT | COMPLETION_REDIRECT)
        for identifier, offset in _extended(space)
        if identifier == ACCESS_CONTROL_SERVICES
    )


def _port_type(space: bytes) -> int | None:
    offset = space[0x34] & ~3
    visited: set[int] = set()
    while offset and offset not in visited:
        visited.add(offset)
        if space[offset] == PCI_EXPRESS:
            return space[offset + 2] >> 4
        offset = space[offset + 1] & ~3
    return None


def _extended(space: bytes) -> Iterator[tuple[int, int]]:
    """Identifier and offset of each extended capability."""
    offset = EXTENDED_SPACE
    visited: set[int] = set()
    while offset >= EXTENDED_SPACE and offset + 8 <= len(space) and offset not in visited:
        visited.add(offset)
        (header,) = struct.unpack_from("<I", space, offset)
        if header in (0, 0xFFFFFFFF):
            return
        yield header & 0xFFFF, offset
        offset = header >> 20
