"""The choices that are told against those that gloo and NCCL make in the same namespace."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.namespace import named, namespace, run, wire

TOLD = """
import json
from ddoctor.analysis.interface_choice import gloo_choice, nccl_choice
from ddoctor.collect.network import network
seen = network()
print(json.dumps([nccl_choice(seen).interfaces, gloo_choice(seen).interfaces]))
"""
GLOO = """
import json, sys
import psutil
from torch.distributed import ProcessGroupGloo as Gloo
names = sys.argv[1:]
device = Gloo.create_device(interface=names[0]) if names else Gloo.create_default_device()
listening = [c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"]
owners = {a.address: n for n, rows in psutil.net_if_addrs().items() for a in rows}
print(json.dumps([owners[ip] if not ip.startswith("127.") else "lo" for ip in listening]))
"""
NCCL = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print("result", library.ncclGetUniqueId(ctypes.create_string_buffer(128)))
"""

ETH0 = wire("eth0", "10.1.0.1/24")
IB0 = wire("ib0", "10.2.0.1/24")
DEAD = wire("ens5", "10.3.0.1/24", answered=False)
DOCKER0 = [
    *wire("veth1"),
    "link add docker0 type bridge",
    "link set end-veth1 master docker0",
    "addr add 172.17.0.1/16 dev docker0",
    "link set docker0 up",
]
ONLY_IPV6 = wire("eth6", "fd06::1/64")
SITUATIONS: dict[str, tuple[list[str], dict[str, str], str]] = {
    "loopback alone": ([], {}, "lo"),
    "one card": (ETH0, {}, "eth0"),
    "ib comes first": ([*ETH0, *IB0], {}, "ib0"),
    "docker last": ([*DOCKER0, *ETH0], {}, "eth0"),
    "docker rather than nothing": (DOCKER0, {}, "docker0"),
    "no carrier": ([*DEAD, *ETH0], {}, "eth0"),
    "IPv4 before IPv6": ([*ONLY_IPV6, *ETH0], {}, "eth0"),
    "IPv6 alone": (ONLY_IPV6, {}, "eth6"),
    "a family": ([*ONLY_IPV6, *ETH0], {"NCCL_SOCKET_FAMILY": "AF_INET6"}, "eth6"),
    "a prefix": ([*ETH0, *DEAD], {"NCCL_SOCKET_IFNAME": "et"}, "eth0"),
    "a whole name": (
        [*wire("eth01", "10.9.0.1/24"), *ETH0],
        {"NCCL_SOCKET_IFNAME": "=eth0"},
        "eth0",
    ),
    "a list": ([*ETH0, *IB0], {"NCCL_SOCKET_IFNAME": "nope,ib0"}, "ib0"),
    "all but": ([*ETH0, *IB0], {"NCCL_SOCKET_IFNAME": "^ib,lo"}, "eth0"),
    "all but whole names": ([*ETH0, *IB0], {"NCCL_SOCKET_IFNAME": "^=eth,lo,ib0"}, "eth0"),
    "a port is passed over": ([*ETH0, *IB0], {"NCCL_SOCKET_IFNAME": "eth0:1"}, "eth0"),
    "one character": ([*ETH0, *IB0], {"NCCL_SOCKET_IFNAME": "e"}, "ib0"),
    "not there": (ETH0, {"NCCL_SOCKET_IFNAME": "enp4s0"}, ""),
    "without carrier": ([*ETH0, *DEAD], {"NCCL_SOCKET_IFNAME": "ens5"}, ""),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_is_told_of_nccl(situation: str) -> None:
    lines, environment, first = SITUATIONS[situation]
    with namespace(*lines) as within:
        told, _ = json.loads(run(within, TOLD, **environment))
    assert told[:1] == ([first] if first else [])


@pytest.mark.parametrize("situation", SITUATIONS)
def test_nccl_itself_takes_that(situation: str) -> None:
    spec = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("this torch has no NCCL package")
    library = Path(next(iter(spec.submodule_search_locations)), "lib/libnccl.so.2")
    lines, environment, first = SITUATIONS[situation]
    with namespace(*lines) as within:
        log = run(within, NCCL, str(library), NCCL_DEBUG="INFO", **environment)
    assert re.findall(r"Bootstrap: Using (\S+?):", log) == ([first] if first else []), log
    assert ("result 0" in log) is bool(first)


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        pytest.param([], "", id="loopback"),
        pytest.param(ETH0, "", id="own name"),
        pytest.param(ETH0, "eth0", id="named", marks=pytest.mark.ward),
        pytest.param(DEAD, "ens5", id="without carrier", marks=pytest.mark.ward),
        pytest.param(
            [*wire("eth1", "10.4.0.1/24"), "link set eth1 down"],
            *("eth1",),
            id="down",
            marks=pytest.mark.ward,
        ),
        pytest.param(ONLY_IPV6, "eth6", id="IPv6"),
    ],
)
def test_the_one_that_gloo_takes(lines: list[str], name: str) -> None:
    with namespace(*lines) as within:
        _, told = json.loads(run(within, TOLD, GLOO_SOCKET_IFNAME=name))
        taken = json.loads(run(within, GLOO, *([name] if name else [])))
    assert taken == told


@pytest.mark.parametrize(
    ("hosts", "interface"),
    [
        pytest.param("10.1.0.1 patient", "eth0", id="own address", marks=pytest.mark.ward),
        pytest.param("127.0.1.1 patient", "lo", id="Debian's"),
        pytest.param("10.99.0.1 patient", "lo", id="another host's", marks=pytest.mark.ward),
        pytest.param("10.99.0.1 patient\n10.1.0.1 patient", "eth0", id="both"),
        pytest.param("", "lo", id="unknown", marks=pytest.mark.ward),
    ],
)
def test_gloo_takes_what_the_own_name_resolves_to(
    tmp_path: Path, hosts: str, interface: str
) -> None:
    with namespace(*ETH0) as inside:
        within = (*inside, *named("patient", hosts, tmp_path))
        _, told = json.loads(run(within, TOLD, GLOO_SOCKET_IFNAME=""))
        assert json.loads(run(within, GLOO)) == told == [interface]
