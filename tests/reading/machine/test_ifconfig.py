"""ifconfig of net-tools 1 and 2, and ip -br addr."""

from __future__ import annotations

import shutil

import psutil
import pytest

from ddoctor.evidence.network import Network
from ddoctor.models import Severity
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read
from tests.reading.machine.test_host import shell
from tests.reading.machine.test_interfaces import VARIABLES

OLD = """br-0af3   Link encap:Ethernet  HWaddr 02:42:ac:12:00:01
          inet addr:172.18.0.1  Bcast:172.18.255.255  Mask:255.255.0.0
          UP BROADCAST MULTICAST  MTU:1500  Metric:1
          RX packets:0 errors:0 dropped:0 overruns:0 frame:0

eth0      Link encap:Ethernet  HWaddr 00:0C:29:6D:A6:54
          inet addr:10.0.0.7  Bcast:10.0.0.255  Mask:255.255.255.0
          inet6 addr: fe80::20c:29ff:fe6d:a654/64 Scope:Link
          UP BROADCAST RUNNING MULTICAST  MTU:9000  Metric:1
          RX packets:52 errors:0 dropped:0 overruns:0 frame:0
          RX bytes:5400 (5.2 KiB)  TX bytes:6100 (5.9 KiB)

ib0       Link encap:InfiniBand  HWaddr 80:00:00:48:FE:80:00:00:00:00:00:00
          inet addr:10.1.0.7  Bcast:10.1.255.255  Mask:255.255.0.0
          UP BROADCAST RUNNING MULTICAST  MTU:2044  Metric:1

lo        Link encap:Local Loopback
          inet addr:127.0.0.1  Mask:255.0.0.0
          UP LOOPBACK RUNNING  MTU:65536  Metric:1
"""
NEW = """br-0af3: flags=4099<UP,BROADCAST,MULTICAST>  mtu 1500
        inet 172.18.0.1  netmask 255.255.0.0  broadcast 172.18.255.255
        ether 02:42:ac:12:00:01  txqueuelen 0  (Ethernet)

eth0: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 9000
        inet 10.0.0.7  netmask 255.255.255.0  broadcast 10.0.0.255
        inet6 fe80::20c:29ff:fe6d:a654  prefixlen 64  scopeid 0x20<link>
        ether 00:0c:29:6d:a6:54  txqueuelen 1000  (Ethernet)
        RX packets 52  bytes 5400 (5.4 KB)

ib0: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 2044
        inet 10.1.0.7  netmask 255.255.0.0  broadcast 10.1.255.255
        infiniband 80:00:00:48:FE:80:00:00:00  txqueuelen 256  (InfiniBand)

lo: flags=73<UP,LOOPBACK,RUNNING>  mtu 65536
        inet 127.0.0.1  netmask 255.0.0.0
        loop  txqueuelen 1000  (Local Loopback)
"""
BRIEF = """lo               UNKNOWN        127.0.0.1/8 ::1/128
eth0             UP             10.0.0.7/24 metric 100 fe80::20c:29ff:fe6d:a654/64
ib0              UP             10.1.0.7/16
br-0af3          DOWN           172.18.0.1/16
"""
PORTS = "veth1a2b@if4     UP             \neno2             DOWN           \n"


@pytest.mark.parametrize("text", [OLD, NEW, BRIEF])
def test_the_interfaces_by_hand(read: Read, text: str) -> None:
    (section,) = read(text).all(Network)
    assert {one.name: one.kind for one in section.interfaces} == {
        "lo": "loopback",
        "eth0": "ethernet",
        "ib0": "infiniband",
        "br-0af3": "local-bridge",
    }
    assert section.interfaces[-1].name in ("br-0af3", "lo")
    eth0, bridge = section.interface("eth0"), section.interface("br-0af3")
    assert eth0 is not None
    assert bridge is not None
    assert (eth0.usable, eth0.mtu, list(eth0.networks)) == (
        True,
        0 if text is BRIEF else 9000,
        ["10.0.0.0/24"],
    )
    assert len(eth0.addresses) == 2
    assert not bridge.running


def test_ports_without_an_address(read: Read) -> None:
    (section,) = read(BRIEF + PORTS).all(Network)
    veth, port = section.interface("veth1a2b"), section.interface("eno2")
    assert veth is not None
    assert port is not None
    assert (veth.kind, veth.running, veth.addresses) == ("veth", True, ())
    assert (port.up, port.running) == (False, False)


@pytest.mark.parametrize("command", ["ifconfig -a", "ip -br addr", "ip -brief a", "ip -4 -br a"])
@pytest.mark.skipif(shutil.which("ip") is None, reason="ip is not installed")
def test_the_interfaces_of_this_machine(read: Read, command: str) -> None:
    if shutil.which(command.split()[0]) is None:
        pytest.skip("ifconfig is not installed")
    (section,) = read(shell(command)).all(Network)
    wanted = {
        name for name, rows in psutil.net_if_addrs().items() if any(r.family == 2 for r in rows)
    }
    assert wanted <= {one.name for one in section.interfaces if one.addresses}


@pytest.mark.parametrize("text", [OLD, NEW, BRIEF])
@pytest.mark.parametrize("value", ["ens3", "eth1"])
def test_a_variable_that_names_no_interface(diagnose: Diagnose, text: str, value: str) -> None:
    report = diagnose(f"{text}{VARIABLES}NCCL_SOCKET_IFNAME={value}\n")
    (finding,) = [one for one in report.findings if one.severity > Severity.NOTE]
    assert finding.cause == "socket-interface-wrong"
    assert f"NCCL_SOCKET_IFNAME={value}" in finding.because


@pytest.mark.parametrize("text", [OLD, NEW, BRIEF, BRIEF + PORTS])
@pytest.mark.parametrize("value", ["eth0", "ib0", "^docker,lo"])
def test_sound_outputs_are_quiet(diagnose: Diagnose, text: str, value: str) -> None:
    report = diagnose(f"{text}{VARIABLES}NCCL_SOCKET_IFNAME={value}\n")
    assert [one for one in report.findings if one.severity > Severity.NOTE] == []


@pytest.mark.parametrize("text", [OLD, NEW, BRIEF])
def test_no_variable_is_quiet(diagnose: Diagnose, text: str) -> None:
    assert diagnose(f"{text}{VARIABLES}").findings == ()


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(NEW.split("\n\n")[1:2]),
        "\n".join(OLD.split("\n\n")[1:2]),
        "2: ib0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 2044 qdisc mq state UP\n"
        "    link/infiniband 80:00\n    inet 10.1.0.7/16 brd 10.1.255.255 scope global ib0\n",
        "$ ip -br addr show eth0\neth0             UP             10.0.0.7/24\n",
        "$ ip -br link\nlo               UNKNOWN        00:00:00:00:00:00 <LOOPBACK,UP,LOWER_UP>\n"
        "eth0             UP             00:0c:29:6d:a6:54 <BROADCAST,MULTICAST,UP,LOWER_UP>\n",
        "lo: flags=73<UP,LOOPBACK,RUNNING>  mtu 65536\n        inet 127.0.0.1  netmask 255.0.1.0\n",
    ],
)
def test_what_says_nothing_of_all_interfaces(read: Read, text: str) -> None:
    assert read(text).all(Network) == ()
