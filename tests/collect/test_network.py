from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from ddoctor.analysis.interface_choice import nccl_choice
from ddoctor.collect import network as collector
from ddoctor.evidence.network import Network
from tests.namespace import Within, namespace, run, wire

LOOK = """
import msgspec
from ddoctor.collect.network import network
print(msgspec.json.encode(network()).decode())
"""


def look(within: Within = (), **environment: str) -> Network:
    return msgspec.json.decode(run(within, LOOK, **environment), type=Network)


def test_this_machine_is_seen_as_ip_sees_it() -> None:
    if shutil.which("ip") is None:
        pytest.skip("there is no ip (iproute2)")
    rows = json.loads(subprocess.check_output(["ip", "-json", "address"]))
    seen = {one.name: one for one in collector.interfaces()}
    assert set(seen) == {row["ifname"] for row in rows}
    for row in rows:
        one = seen[row["ifname"]]
        assert one.mtu == row["mtu"]
        assert one.up is ("UP" in row["flags"])
        assert {(its.address, its.prefix) for its in one.addresses} == {
            (its["local"], its["prefixlen"]) for its in row["addr_info"]
        }


def test_every_kind_that_this_kernel_makes() -> None:
    lines = [
        *wire("eth0", "10.1.0.1/24"),
        "link add br-c0ffee type bridge",
        "link set end-eth0 master br-c0ffee",
        "link add br-empty type bridge",
        "link add vx0 type vxlan id 4 dstport 4789",
        "link add br-overlay type bridge",
        "link set vx0 master br-overlay",
        "tuntap add tun7 mode tun",
        "link add mac0 link eth0 type macvlan",
    ]
    with namespace(*lines) as within:
        kinds = {one.name: one.kind for one in look(within).interfaces}
    assert kinds == {
        "lo": "loopback",
        "eth0": "veth",
        "end-eth0": "veth",
        "br-c0ffee": "local-bridge",
        "br-empty": "local-bridge",
        "br-overlay": "bridge",
        "vx0": "tunnel",
        "tun7": "tunnel",
        "mac0": "vlan",
    }


def test_states_and_addresses() -> None:
    lines = [
        *wire("eth0", "10.1.0.1/24", "fd01::1/64"),
        *wire("eth1", "10.2.0.1/16", answered=False),
        *wire("eth2"),
        "link set eth2 down",
    ]
    with namespace(*lines) as within:
        seen = {one.name: one for one in look(within).interfaces}
    states = {name: (seen[name].up, seen[name].running) for name in ("eth0", "eth1", "eth2")}
    assert states == {"eth0": (True, True), "eth1": (True, False), "eth2": (False, False)}
    assert [(one.address, one.prefix) for one in seen["eth0"].addresses] == [
        ("10.1.0.1", 24),
        ("fd01::1", 64),
    ]
    assert (seen["eth0"].usable, seen["eth1"].usable, seen["eth2"].usable) == (True, False, False)


def test_the_default_route_with_the_lowest_metric() -> None:
    lines = [*wire("eth0", "10.1.0.1/24"), *wire("eth1", "10.2.0.1/24")]
    lines += ["route add default via 10.1.0.254 metric 200"]
    lines += ["route add default via 10.2.0.254 metric 100"]
    with namespace(*lines) as within:
        route = look(within).default_route
    assert route is not None
    assert (route.interface, route.gateway) == ("eth1", "10.2.0.254")


def test_a_default_route_of_ipv6_alone() -> None:
    lines = [*wire("eth0", "fd01::1/64"), "-6 route add default via fd01::fe dev eth0"]
    with namespace(*lines) as within:
        route = look(within).default_route
    assert route is not None
    assert (route.interface, route.gateway) == ("eth0", "fd01::fe")


def test_no_route_is_none() -> None:
    with namespace("route add unreachable default metric 10") as within:
        assert look(within).default_route is None


def test_the_way_to_an_address_is_the_kernels() -> None:
    lines = [*wire("eth0", "10.1.0.1/24"), *wire("eth1", "10.2.0.1/24")]
    lines += ["route add default via 10.1.0.254", "route add 10.9.0.0/16 via 10.2.0.254"]
    code = """
from ddoctor.collect.network import interfaces, route_to
known = tuple(interfaces())
for address in ("10.9.1.1", "10.3.0.1", "fd09::1"):
    way = route_to(address, known)
    print(way and (way.interface, way.source))
"""
    with namespace(*lines) as within:
        told = run(within, code).splitlines()
    assert told == ["('eth1', '10.2.0.1')", "('eth0', '10.1.0.1')", "None"]


def test_names_are_those_of_the_resolver() -> None:
    own = collector.resolve(socket.gethostname())
    assert own.name == socket.gethostname()
    assert bool(own.addresses) is not bool(own.error)
    assert collector.resolve("127.0.0.1").addresses == ("127.0.0.1",)
    lost = collector.resolve("no-such-host.invalid")
    assert lost.addresses == ()
    assert lost.error


def test_a_resolver_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "NAME_LIMIT_SECONDS", 0.2)
    assert collector.bounded(lambda: time.sleep(600)) is None
    assert collector.bounded(lambda: "a name") == "a name"


def test_a_setting_in_nccls_own_file_counts(tmp_path: Path) -> None:
    (tmp_path / "nccl.conf").write_text("NCCL_SOCKET_IFNAME=lo\n")
    seen = look(NCCL_CONF_FILE=str(tmp_path / "nccl.conf"))
    assert nccl_choice(seen).interfaces == ("lo",)
