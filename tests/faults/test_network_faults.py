from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.conftest import Doctor
from tests.namespace import named, namespace, wire

HOLD = """
import socket, sys, time
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("", int(sys.argv[1])))
listener.listen()
print(listener.getsockname()[1], flush=True)
time.sleep(600)
"""


@contextmanager
def held(port: int = 0) -> Iterator[tuple[int, int]]:
    """A port that another process listens on, and that process."""
    command = [sys.executable, "-c", HOLD, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            taken = process.stdout.readline()
            if not taken:
                pytest.skip(f"port {port} is not to be had here")
            yield int(taken), process.pid
        finally:
            process.kill()


def test_nccl_is_told_an_interface_that_is_not_there(doctor: Doctor) -> None:
    examined = doctor(environment={"NCCL_SOCKET_IFNAME": "enp250s0"})
    assert examined.first["cause"] == "socket-interface-wrong"
    assert examined.first["severity"] == "error"
    assert "NCCL_SOCKET_IFNAME=enp250s0" in examined.first["because"]
    assert examined.exit_code == 1


@pytest.mark.ward
def test_gloo_is_told_a_prefix(doctor: Doctor) -> None:
    lines = [*wire("eth0", "10.1.0.1/24"), "route add default via 10.1.0.254"]
    with namespace(*lines) as within:
        examined = doctor(within=within, environment={"GLOO_SOCKET_IFNAME": "eth"})
    assert examined.first["cause"] == "socket-interface-wrong"
    assert examined.first["fixes"][0]["paste"] == "export GLOO_SOCKET_IFNAME=eth0"
    assert examined.exit_code == 1


@pytest.mark.ward
def test_a_bridge_of_containers_comes_first(doctor: Doctor) -> None:
    lines = [
        *wire("veth1"),
        "link add br-c0ffee type bridge",
        "link set end-veth1 master br-c0ffee",
        "addr add 172.19.0.1/16 dev br-c0ffee",
        "link set br-c0ffee up",
        *wire("eth0", "10.1.0.1/24"),
        "route add default via 10.1.0.254",
    ]
    hosts = {"MASTER_ADDR": "10.1.0.9", "GLOO_SOCKET_IFNAME": "eth0"}
    with namespace(*lines) as within:
        examined = doctor(within=within, environment=hosts)
        told = doctor(within=within, environment=hosts | {"NCCL_SOCKET_IFNAME": "eth0"})
    assert examined.first["cause"] == "socket-interface-wrong"
    assert "br-c0ffee leads to no other node" in examined.first["because"]
    assert examined.first["fixes"][0]["paste"] == "export NCCL_SOCKET_IFNAME=eth0"
    assert "socket-interface-wrong" not in told.causes


@pytest.mark.ward
def test_the_rendezvous_port_is_taken(doctor: Doctor) -> None:
    with held() as (port, pid):
        environment = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        examined = doctor(environment=environment)
    assert examined.first["cause"] == "master-port-in-use"
    assert examined.first["severity"] == "error"
    assert f"pid {pid}" in examined.first["because"]
    assert examined.exit_code == 1


def test_the_default_port_is_taken(doctor: Doctor) -> None:
    with held(29500) as (_, pid):
        examined = doctor()
    assert examined.first["cause"] == "master-port-in-use"
    assert examined.first["severity"] == "warning"
    assert f"pid {pid}" in examined.first["because"]
    assert examined.exit_code == 1


@pytest.mark.parametrize(
    "address", [pytest.param("127.0.0.1", marks=pytest.mark.ward), "127.0.1.1"]
)
def test_the_own_name_is_loopback_and_the_master_elsewhere(
    doctor: Doctor, tmp_path: Path, address: str
) -> None:
    within = named("patient", f"{address} patient\n203.0.113.9 head", tmp_path)
    examined = doctor(within=within, environment={"MASTER_ADDR": "head"})
    assert examined.first["cause"] == "hostname-resolution"
    assert examined.first["severity"] == "warning"
    assert f"patient resolves to {address}" in examined.first["because"]
    assert examined.exit_code == 1


@pytest.mark.ward
@pytest.mark.parametrize("which", [pytest.param(0, id="interface"), pytest.param(1, id="hosts")])
def test_either_fix_of_the_own_name_cures(doctor: Doctor, tmp_path: Path, which: int) -> None:
    lines = [*wire("eth0", "10.1.0.1/24"), "route add default via 10.1.0.254"]
    with namespace(*lines) as inside:
        within = (*inside, *named("patient", "127.0.1.1 patient patient-2", tmp_path))
        sick = doctor(within=within, environment={"MASTER_ADDR": "10.1.0.9"})
        assert sick.first["cause"] == "hostname-resolution"
        cure = sick.first["fixes"][which]["paste"]
        cured = (*within, "sh", "-c", f'{cure}\nexec "$@"', "sh")
        examined = doctor(within=cured, environment={"MASTER_ADDR": "10.1.0.9"})
    assert "hostname-resolution" not in examined.causes
    if which == 1:
        assert "127.0.1.1 patient-2" in (tmp_path / "hosts").read_text()


def test_the_own_name_does_not_resolve(doctor: Doctor, tmp_path: Path) -> None:
    examined = doctor(within=named("patient", "", tmp_path))
    assert examined.first["cause"] == "hostname-resolution"
    assert "patient does not resolve" in examined.first["because"]
    assert examined.exit_code == 1


@pytest.mark.ward
def test_the_name_of_the_master_does_not_resolve(doctor: Doctor, tmp_path: Path) -> None:
    within = named("patient", "10.1.0.1 patient", tmp_path)
    examined = doctor(within=within, environment={"MASTER_ADDR": "head"})
    assert examined.first["cause"] == "hostname-resolution"
    assert "MASTER_ADDR=head" in examined.first["because"]
    assert examined.first["severity"] == "error"
    assert examined.exit_code == 1


def test_a_sound_node_of_two(doctor: Doctor, tmp_path: Path) -> None:
    lines = [*wire("eth0", "10.1.0.1/24"), "route add default via 10.1.0.254"]
    with namespace(*lines) as inside:
        within = (*inside, *named("patient", "10.1.0.1 patient\n10.1.0.9 head", tmp_path))
        environment = {"MASTER_ADDR": "head", "NCCL_SOCKET_IFNAME": "eth"}
        examined = doctor(within=within, environment=environment)
    ours = {"socket-interface-wrong", "hostname-resolution", "master-port-in-use"}
    assert not ours & set(examined.causes)
