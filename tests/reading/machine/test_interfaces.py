"""ip addr and lscpu: of this machine, and by hand."""

from __future__ import annotations

import os
import shutil

import psutil
import pytest

from ddoctor.evidence.host import Cpus
from ddoctor.evidence.network import Network
from ddoctor.models import Severity
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read
from tests.reading.machine.test_host import shell

UP, DOWN = "BROADCAST,MULTICAST,UP,LOWER_UP", "NO-CARRIER,BROADCAST,MULTICAST,UP"
LO = """1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000
    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
    inet 127.0.0.1/8 scope host lo
       valid_lft forever preferred_lft forever
"""
VARIABLES = "$ env\nHOME=/home/ann\nPATH=/usr/bin\nSHELL=/bin/bash\n"


def shown(name: str, address: str = "", *, flags: str = UP, link: str = "ether") -> str:
    inet = f"    inet {address} brd 10.0.0.255 scope global {name}\n" if address else ""
    state = "UP" if "LOWER_UP" in flags else "DOWN"
    return (
        f"2: {name}: <{flags}> mtu 9000 qdisc mq state {state} group default qlen 1000\n"
        f"    link/{link} 52:54:00:12:34:56 brd ff:ff:ff:ff:ff:ff\n{inet}"
    )


def test_the_interfaces_by_hand(read: Read) -> None:
    text = LO + shown("eth0", "10.0.0.7/24") + shown("ib0", "10.1.0.7/16", link="infiniband")
    text += shown("docker0", "172.17.0.1/16", flags=DOWN) + shown("veth1a2b@if4")
    text += shown("bond0") + shown("eth0.100@eth0") + shown("eth1@if9") + shown("eth2", flags=DOWN)
    (section,) = read(text).all(Network)
    assert {one.name: one.kind for one in section.interfaces} == {
        "lo": "loopback",
        "eth0": "ethernet",
        "ib0": "infiniband",
        "docker0": "local-bridge",
        "veth1a2b": "veth",
        "bond0": "bond",
        "eth0.100": "vlan",
        "eth1": "veth",
        "eth2": "ethernet",
    }
    eth0, docker0 = section.interface("eth0"), section.interface("docker0")
    assert eth0 is not None
    assert docker0 is not None
    assert (eth0.usable, eth0.mtu, list(eth0.networks)) == (True, 9000, ["10.0.0.0/24"])
    assert (docker0.up, docker0.running) == (True, False)
    assert section.own_name.name == ""
    assert section.unseen


@pytest.mark.skipif(shutil.which("ip") is None, reason="ip is not installed")
def test_the_interfaces_of_this_machine(read: Read) -> None:
    (section,) = read(shell("ip addr")).all(Network)
    names = {one.name for one in section.interfaces if one.addresses}
    addresses = psutil.net_if_addrs()
    assert names == {
        name for name, rows in addresses.items() if any(r.family in (2, 10) for r in rows)
    }


@pytest.mark.skipif(shutil.which("lscpu") is None, reason="lscpu is not installed")
def test_the_processors_of_this_machine(read: Read) -> None:
    (section,) = read(shell("lscpu")).all(Cpus)
    assert section.logical == os.cpu_count()
    assert section.numa == () or section.numa[0].cpus


LSCPU = """Architecture:            x86_64
  CPU op-mode(s):        32-bit, 64-bit
CPU(s):                  128
  On-line CPU(s) list:   0-63,64-127
Vendor ID:               AuthenticAMD
  Model name:            AMD EPYC 7543 32-Core Processor
    Thread(s) per core:  2
NUMA:
  NUMA node(s):          2
  NUMA node0 CPU(s):     0-31,64-95
  NUMA node1 CPU(s):     32-63,96-127
"""


def test_the_processors_by_hand(read: Read) -> None:
    (section,) = read(LSCPU).all(Cpus)
    assert (section.model, section.logical) == ("AMD EPYC 7543 32-Core Processor", 128)
    assert section.allowed == tuple(range(128))
    assert [len(node.cpus) for node in section.numa] == [64, 64]
    assert section.numa[1].cpus[0] == 32


@pytest.mark.parametrize(
    "text",
    [
        LSCPU.replace("0-63,64-127", "0-9999999"),
        LSCPU.replace("0-63,64-127", "all of them"),
        LSCPU.replace("128\n", "9" * 5000 + "\n"),
        "Package: bash\nArchitecture: amd64\nMulti-Arch: foreign\nVersion: 5.2\n",
    ],
)
def test_what_is_no_list_of_processors(read: Read, text: str) -> None:
    assert read(text).all(Cpus) == ()


def test_a_variable_that_names_no_interface_is_found(diagnose: Diagnose) -> None:
    text = f"$ ip addr\n{LO}{shown('eth0', '10.0.0.7/24')}{VARIABLES}NCCL_SOCKET_IFNAME=ens3\n"
    (finding,) = [one for one in diagnose(text).findings if one.severity > Severity.NOTE]
    assert finding.cause == "socket-interface-wrong"
    assert "NCCL_SOCKET_IFNAME=ens3" in finding.because


@pytest.mark.parametrize("value", ["eth0", "eth", "^docker,lo"])
def test_sound_outputs_are_quiet(diagnose: Diagnose, value: str) -> None:
    text = f"$ ip a\n{LO}{shown('eth0', '10.0.0.7/24')}$ lscpu\n{LSCPU}{VARIABLES}"
    assert diagnose(f"{text}NCCL_SOCKET_IFNAME={value}\n").findings == ()


def test_only_the_loopback_interface_says_nothing_of_the_name(diagnose: Diagnose) -> None:
    assert diagnose(f"$ ip addr\n{LO}").findings == ()
