from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddoctor.collect import rendezvous as collector
from ddoctor.evidence.network import Rendezvous
from tests.conftest import free_port

SETTING = (
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
    *collector.NODE_COUNTS,
    *(name for pair in collector.RANK_COUNTS for name in pair),
)

HOLD = """
import socket, sys, time
listener = socket.socket(socket.AF_INET)
listener.bind((sys.argv[1], 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTING:
        monkeypatch.delenv(name, raising=False)


@contextmanager
def held(address: str = "127.0.0.1") -> Iterator[tuple[int, int]]:
    """A port that another process listens on, and that process."""
    command = [sys.executable, "-c", HOLD, address, "--token=of-no-concern"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()


def look(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Rendezvous:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return collector.rendezvous()


def test_without_settings_it_is_here_at_the_default_port(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look(monkeypatch)
    assert (seen.master, seen.master_here, seen.port_from) == (None, True, "default")
    assert seen.port == 29500
    assert seen.several_nodes == ""


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_is_held_and_by_whom(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    with held(address) as (port, pid):
        seen = look(monkeypatch, MASTER_PORT=str(port))
    assert (seen.port, seen.port_from, seen.port_free) == (port, "MASTER_PORT", False)
    assert seen.port_holder is not None
    assert seen.port_holder.pid == pid
    assert seen.port_holder.command.endswith(" -c")
    assert seen.other_port is not None
    assert port < seen.other_port


def test_a_port_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look(monkeypatch, MASTER_PORT=str(free_port()), MASTER_ADDR="localhost")
    assert (seen.port_free, seen.port_holder, seen.other_port) == (True, None, None)
    assert seen.master_here


def test_a_port_in_time_wait_is_free_as_for_tcpstore(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = listener.accept()
            # Who closes first keeps the port in TIME_WAIT.
            accepted.close()
            client.recv(1)
    assert look(monkeypatch, MASTER_PORT=str(port)).port_free is True


def test_looking_leaves_the_port_free(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    look(monkeypatch, MASTER_PORT=str(port))
    with socket.socket() as listener:
        listener.bind(("", port))


def test_a_store_on_another_host_is_not_tried_here(monkeypatch: pytest.MonkeyPatch) -> None:
    with held() as (port, _):
        seen = look(monkeypatch, MASTER_PORT=str(port), MASTER_ADDR="203.0.113.9")
    assert (seen.master_here, seen.port_free) == (False, None)
    assert seen.several_nodes == "MASTER_ADDR=203.0.113.9 is another host"


def test_within_a_run_the_port_is_that_runs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with held() as (port, _):
        seen = look(monkeypatch, MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="a run")
    assert seen.port_free is None
    assert "torchrun" in seen.unseen[0].why


def test_the_port_of_the_own_store_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as own:
        seen = look(monkeypatch, MASTER_PORT=str(own.getsockname()[1]))
    assert (seen.port_free, seen.port_holder, seen.other_port) == (None, None, None)
    assert "own store" in seen.unseen[0].why


def test_the_own_port_in_the_hands_of_a_child_that_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        sleep = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"]
        with subprocess.Popen(sleep, stdout=subprocess.PIPE, pass_fds=[listener.fileno()]) as child:
            assert child.stdout is not None
            child.stdout.readline()
            seen = look(monkeypatch, MASTER_PORT=port)
            child.kill()
    assert (seen.port_free, seen.port_holder) == (None, None)


@pytest.mark.parametrize("text", ["abc", "70000", "-1"])
def test_no_port_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    seen = look(monkeypatch, MASTER_PORT=text)
    assert seen.port_from == "default"
    assert (seen.unseen[0].what, text in seen.unseen[0].why) == ("MASTER_PORT", True)


def test_a_master_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look(monkeypatch, MASTER_ADDR="no-such-host.invalid")
    assert seen.master is not None
    assert seen.master.error
    assert (seen.master_here, seen.master_route, seen.several_nodes) == (False, None, "")


@pytest.mark.parametrize(
    "environment",
    [
        {"SLURM_NNODES": "4"},
        {"SLURM_JOB_NUM_NODES": "2"},
        {"PET_NNODES": "1:4"},
        {"GROUP_WORLD_SIZE": "2"},
        {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"},
    ],
)
def test_several_nodes(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    name, value = next(iter(environment.items()))
    assert look(monkeypatch, **environment).several_nodes.startswith(f"{name}={value}")


@pytest.mark.parametrize(
    "environment",
    [
        {"SLURM_NNODES": "1"},
        {"NNODES": ""},
        {"PET_NNODES": "1:1"},
        {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"},
        {"WORLD_SIZE": "8"},
        {"MASTER_ADDR": "localhost"},
    ],
)
def test_one_node(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    assert look(monkeypatch, **environment).several_nodes == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["/usr/bin/python3", "train.py", "--hub_token", "hf_x"], "python3 train.py"),
        (
            ["python", "-u", "-m", "torch.distributed.run", "x.py"],
            "python -u -m torch.distributed.run",
        ),
        (["java", "-Dpassword=x", "Main"], "java"),
        (["bash", "-c", "TOKEN=x ./run"], "bash -c"),
        (["trainer --token=x"], "trainer"),
    ],
)
def test_only_the_program_is_told_of_a_holder(words: list[str], told: str) -> None:
    assert " ".join(collector._program(words)) == told


def test_a_port_that_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()
    if os.geteuid() == 0 or int(first) <= 80:
        pytest.skip("every port may be opened by this user")
    seen = look(monkeypatch, MASTER_PORT="80")
    assert seen.port_free is None
    assert seen.unseen
