"""Container, hypervisor, IOMMU and ACS: this machine, and trees for machines that it is not."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from ddoctor.collect import pci
from ddoctor.collect.kernel import container, kernel, virtual_machine

OVERLAY = "530 472 0:60 / / rw - overlay overlay rw,lowerdir=/l\n"
DISK = "27 1 254:0 / / rw - ext4 /dev/vda rw\n"
ENROOT = "800 700 8:2 /enroot/data/user-1000/pyxis_77 / rw - ext4 /dev/sda2 rw\n"
REDIRECTS = 0x1D
"""Source validation, both redirects and upstream forwarding: what Linux switches on for VMs."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def write(root: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def in_namespace(root: Path, number: int) -> None:
    namespaces = root / "proc/self/ns"
    namespaces.mkdir(parents=True, exist_ok=True)
    (namespaces / "pid").symlink_to(f"pid:[{number}]")


@pytest.mark.parametrize(
    ("files", "variables", "kind"),
    [
        ({".dockerenv": "", "proc/self/mountinfo": OVERLAY}, {}, "docker"),
        ({"run/.containerenv": "", "proc/self/mountinfo": OVERLAY}, {}, "podman"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"SINGULARITY_CONTAINER": "/i.sif", "APPTAINER_CONTAINER": "/i.sif"}, "apptainer"),
        ({}, {"SINGULARITY_CONTAINER": "/i.sif"}, "singularity"),
        ({}, {"container": "lxc"}, "lxc"),
        ({"run/systemd/container": "systemd-nspawn\n"}, {}, "systemd-nspawn"),
        ({"proc/self/mountinfo": ENROOT}, {}, "enroot"),
        ({"proc/self/cgroup": "4:cpu:/kubepods/burstable/pod1/2\n"}, {}, "kubernetes"),
        ({"proc/self/cgroup": "4:cpu:/docker/4f2a\n"}, {}, "docker"),
        ({"proc/self/cgroup": "0::/user.slice/user-1000.slice\n"}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_kinds_of_containers(
    root: Path, files: Mapping[str, str], variables: Mapping[str, str], kind: str
) -> None:
    in_namespace(root, 4026532601)
    write(root, files)
    assert container(root, variables) == kind


def test_a_virtual_machine_made_of_an_image_is_no_container(root: Path) -> None:
    in_namespace(root, 4026531836)
    write(root, {".dockerenv": "", "proc/self/mountinfo": DISK})
    assert container(root, {}) == ""


def test_a_container_that_sees_all_processes_is_one(root: Path) -> None:
    in_namespace(root, 4026531836)
    write(root, {".dockerenv": "", "proc/self/mountinfo": OVERLAY})
    assert container(root, {}) == "docker"


@pytest.mark.parametrize(
    ("flags", "vendor", "product", "clocks", "named"),
    [
        ("flags : fpu hypervisor sse", "QEMU", "Standard PC", "kvm-clock tsc", "QEMU Standard PC"),
        ("flags : fpu hypervisor sse", "", "", "tsc kvm-clock", "KVM"),
        ("flags : fpu hypervisor sse", "", "", "tsc", "unknown"),
        ("flags : fpu sse", "Dell Inc.", "PowerEdge XE9680", "tsc hpet", ""),
        ("flags : fpu sse", "Amazon EC2", "p5.metal", "tsc", ""),
        ("Features : fp asimd", "Amazon EC2", "c7g.metal", "arch_sys_counter", ""),
        ("Features : fp asimd", "Amazon EC2", "c7g.large", "x", "Amazon EC2 c7g.large"),
        ("Features : fp asimd", "NVIDIA", "GH200", "arch_sys_counter", ""),
    ],
)
def test_virtual_machines(
    root: Path, flags: str, vendor: str, product: str, clocks: str, named: str
) -> None:
    clock = "sys/devices/system/clocksource/clocksource0/available_clocksource"
    write(root, {"proc/cpuinfo": f"processor : 0\n{flags}\n", clock: clocks})
    if vendor:
        dmi = "sys/class/dmi/id"
        write(root, {f"{dmi}/sys_vendor": f"{vendor}\n", f"{dmi}/product_name": f"{product}\n"})
    assert virtual_machine(root) == named


def test_only_words_that_steer_devices_are_kept(root: Path) -> None:
    words = "ro token=abc intel_iommu=on iommu=pt auth_key=1 pci=realloc isolcpus=2-3 --password x"
    write(root, {"proc/cmdline": words, "proc/cpuinfo": ""})
    assert kernel(root, {}).command_line == "intel_iommu=on iommu=pt pci=realloc isolcpus=2-3"


def test_this_machine() -> None:
    seen = kernel()
    assert seen.release == os.uname().release
    assert seen.iommu_groups == len(list(Path("/sys/kernel/iommu_groups").glob("*")))
    assert bool(seen.virtual_machine) == (" hypervisor " in Path("/proc/cpuinfo").read_text())


class Tree:
    """A PCI tree: root port, switch with two ports, a GPU below each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bus = root / "sys/bus/pci/devices"
        self.bus.mkdir(parents=True)

    def device(self, place: str, kind: str, config: bytes = b"", vendor: str = "0x10de") -> Path:
        folder = self.root / "sys/devices/pci0000:15" / place
        folder.mkdir(parents=True)
        (folder / "class").write_text(f"{kind}\n")
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "config").write_bytes(config)
        (self.bus / folder.name).symlink_to(folder)
        return folder

    def switch(self, first: bytes, second: bytes, top: bytes) -> None:
        port, upstream = "0000:15:01.0", "0000:16:00.0"
        self.device(port, "0x060400", top, "0x8086")
        self.device(f"{port}/{upstream}", "0x060400", config(5), "0x1000")
        for number, space in enumerate((first, second)):
            below = f"{port}/{upstream}/0000:17:0{number}.0"
            self.device(below, "0x060400", space, "0x1000")
            self.device(f"{below}/0000:1{8 + number}:00.0", "0x030200")

    def ports(self) -> tuple[str, ...]:
        return pci.redirecting_ports(pci.gpus(self.root))


def config(port_type: int, acs: int | None = None, readable: int = 4096) -> bytes:
    """A configuration space: a list of capabilities, and of extended ones beyond 256 bytes."""
    space = bytearray(4096)
    space[0x34] = 0x40
    space[0x40:0x42] = bytes((0x01, 0x60))  # power management comes first
    space[0x60:0x64] = bytes((0x10, 0x00, port_type << 4 | 2, 0x00))
    struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | 0x148 << 20)  # error reporting
    if acs is not None:
        struct.pack_into("<IHH", space, 0x148, 0x000D | 1 << 16, 0x7F, acs)
    return bytes(space[:readable])


@pytest.fixture
def tree(root: Path) -> Tree:
    return Tree(root)


def test_switch_ports_that_redirect(tree: Tree) -> None:
    tree.switch(config(6, REDIRECTS), config(6, REDIRECTS), config(4, REDIRECTS))
    assert tree.ports() == ("0000:17:00.0", "0000:17:01.0")


@pytest.mark.parametrize(
    "port",
    [
        pytest.param(config(6, 0x00), id="switched off"),
        pytest.param(config(6, 0x01), id="source validation alone redirects nothing"),
        pytest.param(config(6), id="no such capability"),
    ],
)
def test_switch_ports_that_do_not_redirect(tree: Tree, port: bytes) -> None:
    tree.switch(port, port, config(4, REDIRECTS))
    assert tree.ports() == ()


def test_ports_without_a_gpu_do_not_count(tree: Tree) -> None:
    tree.device("0000:15:01.0", "0x060400", config(6, REDIRECTS), "0x1000")
    tree.device("0000:15:01.0/0000:16:00.0", "0x020000", b"", "0x15b3")
    tree.device("0000:15:02.0", "0x060400", config(6, REDIRECTS), "0x1000")
    tree.device("0000:15:02.0/0000:17:00.0", "0x030000", b"", "0x1a03")
    assert tree.ports() == ()


def test_what_only_root_may_read_is_unseen(tree: Tree) -> None:
    short = config(6, REDIRECTS, readable=64)
    tree.switch(short, short, short)
    write(tree.root, {"proc/cmdline": "", "proc/cpuinfo": ""})
    seen = kernel(tree.root, {})
    assert seen.acs_redirecting is None
    (unseen,) = seen.unseen
    assert "ACS" in unseen.what
    assert "root" in unseen.why


@pytest.mark.parametrize(
    ("kinds", "words", "expected"),
    [
        (("identity", "identity"), "", True),
        (("DMA-FQ", "DMA-FQ"), "", False),
        (("identity", "DMA"), "iommu=pt", False),
        (("unmanaged", "unmanaged"), "iommu=pt", True),
        (("unmanaged", "unmanaged"), "", None),
        ((None, None), "iommu=pt", True),
        ((None, None), "iommu.passthrough=1", True),
        ((None, None), "intel_iommu=on", None),
    ],
)
def test_what_the_groups_say_goes_before_the_command_line(
    tree: Tree, kinds: tuple[str | None, ...], words: str, expected: bool | None
) -> None:
    for number, kind in enumerate(kinds):
        gpu = tree.device(f"0000:15:0{number}.0", "0x030200")
        group = tree.root / f"sys/kernel/iommu_groups/{number}"
        group.mkdir(parents=True)
        (gpu / "iommu_group").symlink_to(group)
        if kind is not None:
            (group / "type").write_text(f"{kind}\n")
    assert pci.iommu_groups(tree.root) == len(kinds)
    assert pci.passthrough(pci.gpus(tree.root), words.split(), tree.root) is expected


def test_without_an_iommu_nothing_is_said_of_it(tree: Tree) -> None:
    tree.device("0000:15:00.0", "0x030200")
    assert pci.iommu_groups(tree.root) == 0
    assert pci.passthrough(pci.gpus(tree.root), ["iommu=pt"], tree.root) is None
