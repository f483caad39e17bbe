"""RDMA from a tree of files as sysfs and devfs show it: there is no RDMA hardware to test on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ddoctor.collect import rdma as collector

OPEN_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build"
OWN_DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue Jan 14 2025"
ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
LINK_LOCAL = "fe80:0000:0000:0000:0e42:a1ff:fe5a:d6b8"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a00:0005"

VERBS = """
#include <stddef.h>
static void *devices[3] = {"mlx5_1", "mlx5_0", NULL};
void **ibv_get_device_list(int *count) { *count = 2; return devices; }
const char *ibv_get_device_name(void *device) { return device; }
void ibv_free_device_list(void **list) { (void)list; }
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def card(
    root: Path,
    name: str,
    *,
    bus_id: str = "0000:1a:00.0",
    driver: str = "mlx5_core",
    state: str = "4: ACTIVE",
    physical: str = "5: LinkUp",
    rate: str = "400 Gb/sec (4X NDR)",
    layer: str = "InfiniBand",
    rows: tuple[tuple[str, str, str], ...] = (),
) -> None:
    """One device with one port; rows are GID, type and interface."""
    device = root / "sys/class/infiniband" / name
    port = device / "ports/1"
    for file, text in (
        ("state", state),
        ("phys_state", physical),
        ("rate", rate),
        ("link_layer", layer),
    ):
        write(port / file, text)
    write(device / "board_id", "MT_0000000838")
    write(device / "fw_ver", "28.39.1002")
    for index, (gid, kind, interface) in enumerate(rows):
        write(port / f"gids/{index}", gid)
        if gid != ZERO:
            write(port / f"gid_attrs/types/{index}", kind)
            write(port / f"gid_attrs/ndevs/{index}", interface)
    physical_device = root / "sys/devices/pci0000:17" / bus_id
    write(physical_device / "numa_node", "1")
    (root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
    (physical_device / "driver").symlink_to(root / "sys/bus/pci/drivers" / driver)
    (device / "device").symlink_to(physical_device)


def test_infiniband(tmp_path: Path) -> None:
    for index in range(12):
        card(tmp_path, f"mlx5_{index}", bus_id=f"0000:{index:02x}:00.0")
    devices = tuple(collector.devices(tmp_path))
    assert [device.name for device in devices] == [f"mlx5_{index}" for index in range(12)]
    assert devices[10].bus_id == "0000:0a:00.0"
    assert devices[0].driver == "mlx5_core"
    assert devices[0].numa_node == 1
    assert (devices[0].board, devices[0].firmware) == ("MT_0000000838", "28.39.1002")
    (port,) = devices[0].ports
    assert (port.number, port.state, port.physical_state) == (1, "ACTIVE", "LinkUp")
    assert (port.rate, port.link_layer) == (400.0, "InfiniBand")
    assert devices[0].active


def test_a_roce_port_and_its_gid_table(tmp_path: Path) -> None:
    rows = (
        (LINK_LOCAL, "IB/RoCE v1", "ens1f0"),
        (LINK_LOCAL, "RoCE v2", "ens1f0"),
        (MAPPED, "IB/RoCE v1", "ens1f0"),
        (MAPPED, "RoCE v2", "ens1f0"),
        (ZERO, "", ""),
    )
    card(tmp_path, "mlx5_bond_0", layer="Ethernet", rate="100 Gb/sec (4X EDR)", rows=rows)
    ((port,),) = (device.ports for device in collector.devices(tmp_path))
    assert port.interface == "ens1f0"
    assert port.gids is not None
    assert [(gid.index, gid.kind, gid.ipv4) for gid in port.gids] == [
        (0, "RoCE v1", None),
        (1, "RoCE v2", None),
        (2, "RoCE v1", "10.0.0.5"),
        (3, "RoCE v2", "10.0.0.5"),
    ]


@pytest.mark.parametrize(
    ("state", "physical", "told"),
    [("1: DOWN", "3: Disabled", "DOWN"), ("2: INIT", "5: LinkUp", "INIT")],
)
def test_a_port_that_is_not_active(tmp_path: Path, state: str, physical: str, told: str) -> None:
    card(tmp_path, "mlx5_0", state=state, physical=physical, rate="2.5 Gb/sec (1X SDR)")
    (device,) = collector.devices(tmp_path)
    assert (device.ports[0].state, device.ports[0].rate) == (told, 2.5)
    assert not device.active


def test_soft_roce_has_no_card(tmp_path: Path) -> None:
    write(tmp_path / "sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE")
    section = collector.rdma(tmp_path)
    assert [device.name for device in section.devices] == ["rxe0"]
    assert section.fabric == ()


def test_nothing_is_nothing(tmp_path: Path) -> None:
    section = collector.rdma(tmp_path)
    assert (section.devices, section.verbs_nodes, section.peer_memory) == ((), (), None)


def test_device_nodes_are_tried(tmp_path: Path) -> None:
    write(tmp_path / "dev/infiniband/uverbs0", "")
    # Cannot be opened for writing by anybody, as a node that the container's rules refuse.
    (tmp_path / "dev/infiniband/uverbs1").mkdir()
    write(tmp_path / "dev/infiniband/rdma_cm", "")
    sound, refused = collector.verbs_nodes(tmp_path)
    assert (sound.path, sound.refused) == ("/dev/infiniband/uverbs0", "")
    assert (refused.path, bool(refused.refused)) == ("/dev/infiniband/uverbs1", True)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with the part of libibverbs' interface that is asked."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("verbs")
    (folder / "verbs.c").write_text(VERBS)
    path = folder / "libplayed.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, folder / "verbs.c"], check=True)
    return path


def test_libibverbs_is_asked_as_nccl_asks_it(library: Path) -> None:
    assert collector.verbs({"NCCL_IBVERBS_LIB": str(library)}) == (
        str(library),
        ("mlx5_0", "mlx5_1"),
    )


def test_a_library_that_is_no_libibverbs_cannot_be_asked() -> None:
    assert collector.verbs({"NCCL_IBVERBS_LIB": "libc.so.6"}) == ("libc.so.6", None)


def test_an_absent_library_falls_back_to_the_usual_names() -> None:
    absent = {"NCCL_IBVERBS_LIB": "/nowhere/libibverbs.so"}
    assert collector.verbs(absent) == collector.verbs({})


def test_the_plugin_is_found_where_the_loader_looks(tmp_path: Path) -> None:
    write(tmp_path / "opt/ofi/lib/libnccl-net.so", "")
    write(tmp_path / "opt/hpcx/lib/libnccl-net-ucx.so", "")
    assert collector.net_plugin({}, tmp_path) is None
    by_path = {"LD_LIBRARY_PATH": "/nowhere:/opt/ofi/lib/"}
    assert collector.net_plugin(by_path, tmp_path) == "/opt/ofi/lib/libnccl-net.so"
    write(tmp_path / "etc/ld.so.conf.d/zz.conf", "# plug-ins\n/opt/hpcx/lib")
    by_name = {"NCCL_NET_PLUGIN": "ucx"}
    assert collector.net_plugin(by_name, tmp_path) == "/opt/hpcx/lib/libnccl-net-ucx.so"
    whole = {"NCCL_NET_PLUGIN": "/opt/ofi/lib/libnccl-net.so"}
    assert collector.net_plugin(whole, tmp_path) == "/opt/ofi/lib/libnccl-net.so"
    assert collector.net_plugin({"NCCL_NET_PLUGIN": "none"}, tmp_path) is None


def test_a_plugin_aside(tmp_path: Path) -> None:
    write(tmp_path / "opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", "")
    section = collector.rdma(tmp_path)
    assert section.net_plugin is None
    assert section.net_plugin_aside == "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("sys/module/nvidia_peermem/version", "nvidia_peermem"),
        ("sys/kernel/mm/memory_peers/nv_mem/version", "nv_mem"),
    ],
)
def test_peer_memory_modules(tmp_path: Path, file: str, name: str) -> None:
    write(tmp_path / file, "570.86.15")
    assert collector.rdma(tmp_path).peer_memory == name


@pytest.mark.parametrize(
    ("driver", "release", "can"),
    [
        (OPEN_DRIVER, "6.8.0-45-generic", True),
        (OPEN_DRIVER, "5.12.0", True),
        (OPEN_DRIVER, "5.4.0-200-generic", False),
        (OPEN_DRIVER, "4.18.0-553.el8_10.x86_64", None),
        (OWN_DRIVER, "6.8.0-45-generic", False),
        ("", "6.8.0-45-generic", None),
    ],
)
def test_dma_buf(tmp_path: Path, driver: str, release: str, can: bool | None) -> None:
    if driver:
        write(tmp_path / "proc/driver/nvidia/version", driver)
    told, reason = collector.dma_buf_export(tmp_path, release)
    assert told is can
    assert reason


def test_this_machine_is_seen_as_its_kernel_shows_it() -> None:
    folder = Path("/sys/class/infiniband")
    names = set(os.listdir(folder)) if folder.is_dir() else set()
    assert {device.name for device in collector.rdma().devices} == names
