"""A run in a network with little or nothing in it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import free_port
from tests.hostile.surroundings import RUN, TOGETHER, TORCHRUN, after, run, script

LOOPBACK = "ip link set lo up"
ONLY_IPV6 = f"{LOOPBACK}\nip addr del 127.0.0.1/8 dev lo"


@pytest.mark.ward
def test_no_network_at_all(tmp_path: Path) -> None:
    """Not even a loopback interface that is up: the store cannot be opened."""
    words = (*RUN, sys.executable, str(script(tmp_path)))
    ran = run(*words, within=after("", "--net"), environment={"CODE": "3"})
    assert (ran.code, ran.ends) == (3, 1)
    assert len(ran.said) <= 1


@pytest.mark.ward
@pytest.mark.parametrize("prepare", [LOOPBACK, ONLY_IPV6])
def test_one_process_on_a_loopback_interface(tmp_path: Path, prepare: str) -> None:
    words = (*RUN, sys.executable, str(script(tmp_path)))
    ran = run(*words, within=after(prepare, "--net"), environment={"CODE": "3"})
    assert (ran.code, ran.ends) == (3, 1)
    assert len(ran.said) <= 1


@pytest.mark.ward
def test_two_ranks_on_a_loopback_interface(tmp_path: Path) -> None:
    words = (*RUN, *TORCHRUN, "2", str(script(tmp_path, TOGETHER)))
    ran = run(*words, within=after(LOOPBACK, "--net"))
    assert (ran.ends, len(ran.said)) == (2, 0)


@pytest.mark.ward
def test_the_ports_beside_the_launchers_are_taken(tmp_path: Path) -> None:
    """Then the run is not recorded: torchrun's own store is not used here, as by mpirun."""
    port = free_port()
    code = (
        "import os, socket, subprocess, sys\n"
        "held = [socket.create_server(('', port)) for port in range(*map(int, sys.argv[1:3]))]\n"
        "ranks = [dict(os.environ, RANK=rank, LOCAL_RANK=rank) for rank in '01']\n"
        "started = [subprocess.Popen(sys.argv[3:], env=one) for one in ranks]\n"
        "sys.exit(max(one.wait() for one in started))"
    )
    taken = (sys.executable, "-c", code, str(port + 1), str(port + 9))
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    path = script(tmp_path, TOGETHER)
    words = (sys.executable, "-m", "ddoctor.probe", "run", "--no-prove", str(path))
    ran = run(*words, within=taken, environment={**world, **address, "CODE": "3"})
    assert (ran.code, ran.ends) == (3, 2), ran.stderr
    assert any("no port is free for the store" in line for line in ran.said)
    assert all(line.endswith("not recorded") for line in ran.said)


def test_probes_without_a_loopback_interface() -> None:
    """They say so at once; the rest of the examination goes on."""
    words = ("doctor", "--probe", "allreduce", "--json", "-")
    ran = run(sys.executable, "-m", "ddoctor", *words, within=after("", "--net"))
    told = json.loads(ran.stdout)
    (crashed,) = told["crashed"]
    assert "127.0.0.1 cannot be used" in crashed["error"]
    assert "ip link set lo up" in crashed["error"]
    assert (ran.code, told["verdict"]) == (2, "incomplete")
