"""The file of NCCL_TOPO_DUMP_FILE, in the form in which NCCL writes it."""

from __future__ import annotations

import pytest

from ddoctor.evidence.gpus import Gpus
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read

LINK_SPEED = 'link_speed="32.0 GT/s PCIe"'
GPU = """\
      <pci busid="0000:{bus}:00.0" vendor="0x10de" device="0x2330" {speed} link_width="{width}">
        <gpu dev="{index}" sm="90" rank="{index}" gdr="1">
{links}        </gpu>
      </pci>
"""
LINK = '          <nvlink target="0000:c{}:00.0" count="4" tclass="0x068000"/>\n'
SWITCH = '    <pci busid="0000:{}:00.0" class="0x060400" vendor="0x1000" link_width="16">\n'
NIC = """\
      <pci busid="0000:05:00.0" class="0x020700" vendor="0x15b3" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
"""
CPU = '  <cpu host_hash="0x1" numaid="{}" affinity="ffff" arch="x86_64">\n'


def dumped(widths: tuple[int, int, int] = (16, 16, 16), *, links: str = "") -> str:
    """Two GPUs on one switch of the first socket, and one on the second socket."""
    a, b, c = (
        GPU.format(bus=f"{index + 3:02x}", speed=LINK_SPEED, index=index, width=width, links=links)
        for index, width in enumerate(widths)
    )
    return (
        f'<system version="1">\n{CPU.format(0)}{SWITCH.format("01")}{a}{NIC}{b}    </pci>\n'
        f"  </cpu>\n{CPU.format(1)}{c}  </cpu>\n</system>\n"
    )


def gpus(read: Read, text: str) -> Gpus:
    (found,) = read(text).all(Gpus)
    return found


def test_the_paths_between_gpus(read: Read) -> None:
    found = gpus(read, dumped())
    assert [(one.index, one.bus_id, one.numa_node) for one in found.gpus] == [
        (0, "0000:03:00.0", 0),
        (1, "0000:04:00.0", 0),
        (2, "0000:05:00.0", 1),
    ]
    assert {(one.a, one.b): one.path for one in found.peers or ()} == {
        (0, 1): "pcie-switch",
        (0, 2): "system",
        (1, 2): "system",
    }


def test_gpus_at_nvswitches(read: Read) -> None:
    found = gpus(read, dumped(links=LINK.format(1) + LINK.format(2)))
    assert {one.path for one in found.peers or ()} == {"nvlink"}
    assert [len(one.nvlinks or ()) for one in found.gpus] == [8, 8, 8]


@pytest.mark.parametrize(("widths", "wrong"), [((16, 8, 16), True), ((8, 8, 8), False)])
def test_the_lanes_of_equal_gpus(
    diagnose: Diagnose, widths: tuple[int, int, int], wrong: bool
) -> None:
    found = [one.cause for one in diagnose(dumped(widths)).findings]
    assert ("pcie-link-degraded" in found) is wrong


@pytest.mark.parametrize(
    "text",
    [
        '<system version="1">\n</system>\n',
        '<system version="1">\n  <cpu numaid="0">\n    <gpu dev="x">\n    </gpu>\n  </cpu>\n',
        dumped()[:400],
        dumped().replace('link_width="16"', 'link_width="many"'),
        '<system version="1">\n' + '  <cpu numaid="0">\n' * 5000,
    ],
)
def test_garbled_files_are_survived(diagnose: Diagnose, text: str) -> None:
    assert diagnose(text).crashed == ()
