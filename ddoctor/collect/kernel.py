"""Kernel, container and hypervisor, and the settings for peer-to-peer DMA: IOMMU and ACS."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ddoctor.collect import pci
from ddoctor.collect.holders import INITIAL_PID_NAMESPACE
from ddoctor.evidence.host import Kernel
from ddoctor.evidence.section import Unseen
from ddoctor.proc.files import search, text

STEERING = re.compile(
    r"(iommu[.\w]*|intel_iommu|amd_iommu|pci|pcie_\w+|numa\w*|isolcpus|nohz_full|nosmt|mitigations"
    r"|(default_)?hugepagesz?|transparent_hugepage|nvidia[\w.\-]*)(=|$)"
)
"""The options of the kernel's command line that are kept; others may hold secrets."""

VIRTUAL_HARDWARE = re.compile(
    r"QEMU|KVM|VMware|Virtual|Xen|HVM domU|Google Compute Engine|Amazon EC2|OpenStack|Parallels"
)
"""Words of DMI's vendor and product by which virtual hardware names itself."""

VIRTUAL_CLOCKS = {"kvm-clock": "KVM", "hyperv_clocksource_tsc_page": "Hyper-V", "xen": "Xen"}


def kernel(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Kernel:
    """The kernel below this process, and its settings for transfers between devices."""
    words = text(root / "proc/cmdline").split()
    gpus = pci.gpus(root)
    try:
        redirecting: tuple[str, ...] | None = pci.redirecting_ports(gpus)
        unseen: tuple[Unseen, ...] = ()
    except PermissionError as error:
        redirecting = None
        unseen = (Unseen(what="ACS of the PCIe switches above the GPUs", why=str(error)),)
    return Kernel(
        release=os.uname().release,
        command_line=" ".join(word for word in words if STEERING.match(word)),
        container=container(root, environment),
        virtual_machine=virtual_machine(root),
        iommu_groups=pci.iommu_groups(root),
        iommu_passthrough=pci.passthrough(gpus, words, root),
        acs_redirecting=redirecting,
        unseen=unseen,
    )


def container(root: Path, environment: Mapping[str, str]) -> str:
    """The kind of container; empty: none detected (https://systemd.io/CONTAINER_INTERFACE)."""
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    for name in ("APPTAINER", "SINGULARITY"):
        if environment.get(f"{name}_CONTAINER"):
            return name.lower()
    # Enroot starts no init and sets no mark; its root is a folder of its own data path.
    top = _mounted_at_root(root)
    if re.search(r"\b(enroot|pyxis)", " ".join(top)):
        return "enroot"
    named = text(root / "run/systemd/container") or environment.get("container", "")
    if named:
        return named
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists() and not _is_machine_made_of_an_image(root, top):
        return "docker"
    groups = text(root / "proc/self/cgroup")
    marks = {"kubepods": "kubernetes", "/docker": "docker", "libpod": "podman", "/lxc": "lxc"}
    return next((kind for mark, kind in marks.items() if mark in groups), "")


def virtual_machine(root: Path) -> str:
    """The virtual hardware that this kernel runs on; empty: none detected."""
    dmi = root / "sys/class/dmi/id"
    hardware = f"{text(dmi / 'sys_vendor')} {text(dmi / 'product_name')}".strip()
    flags = search(r"^flags\s*:(.*)$", root / "proc/cpuinfo")
    if not flags:  # ARM has no such bit, and clouds sell bare machines under their own name
        virtual = VIRTUAL_HARDWARE.search(hardware) and ".metal" not in hardware
        return hardware if virtual else ""
    if "hypervisor" not in flags.split():
        return ""
    sources = text(root / "sys/devices/system/clocksource/clocksource0/available_clocksource")
    clocks = (VIRTUAL_CLOCKS[name] for name in sources.split() if name in VIRTUAL_CLOCKS)
    return hardware or next(clocks, "unknown")


def _is_machine_made_of_an_image(root: Path, top: tuple[str, ...]) -> bool:
    """Whether a mark of an image belongs to a virtual machine that was made from it.

    A container has a root of layers (overlay), or a separate process namespace.
    """
    try:
        namespace = os.readlink(root / "proc/self/ns/pid")
    except OSError:
        return False
    return namespace == INITIAL_PID_NAMESPACE and "overlay" not in top


def _mounted_at_root(root: Path) -> tuple[str, ...]:
    """Folder, kind and source of what is mounted at /."""
    for line in text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        folder, mount_point = before.split()[3:5]
        if mount_point == "/":
            kind, source, *_ = after.split()
            return folder, kind, source
    return ()


COLLECTORS = (kernel,)
