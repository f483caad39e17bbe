"""Hosts that cannot join, ranks that are held: different right answers, each within its limit."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddoctor.proc import processes
from tests.cluster.conftest import MARK, Cluster, MakeCluster, Output, outcome

PROBE = ("-m", "ddoctor.probe")


def report(outputs: tuple[Output, ...] | list[Output]) -> Mapping[str, Any]:
    """The one report among the outputs of all hosts."""
    texts = [one.stdout for one in outputs if one.stdout.strip()]
    assert len(texts) == 1, outputs
    found: Mapping[str, Any] = json.loads(texts[0])
    return found


def process(made: Cluster, rank: int, module: str) -> psutil.Process:
    """The process of a rank, once it is there."""
    while True:
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                environment = one.environ()
                ours = environment.get(MARK) == made.mark and environment.get("RANK") == str(rank)
                if ours and module in one.cmdline():
                    return one
        time.sleep(0.02)


def held(made: Cluster, hold: Callable[[], psutil.Process], *arguments: str) -> Mapping[str, Any]:
    """The report of a run in which a process is stopped; its launcher is ended afterwards."""
    started = [made.start(node, *made.torchrun, *PROBE, *arguments) for node in made.nodes]
    hold().send_signal(signal.SIGSTOP)
    first = outcome(started[0])
    processes.end(0.0, **{MARK: made.mark})
    for one in started[1:]:
        one.communicate()
    assert first.exit_code == 1
    return report([first])


def journal(worker: psutil.Process, rank: int) -> Path:
    folder = next(word for word in worker.cmdline() if word.startswith("--folder="))
    return Path(folder.partition("=")[2], f"rank-{rank}.jsonl")


@pytest.mark.ward
def test_hosts_that_are_well(cluster: MakeCluster) -> None:
    made = cluster(3)
    outputs = made.run(*made.torchrun, *PROBE, "matmul", "--json", "-")
    found = report(outputs)
    assert found["verdict"] == "healthy", found
    assert found["world"] == {
        "hosts": ["node-0", "node-1", "node-2"],
        "ranks": 3,
        "backend": "gloo",
    }
    assert [one.exit_code for one in outputs] == [0, 0, 0]


@pytest.mark.ward
def test_a_rank_stopped_before_it_joins(cluster: MakeCluster) -> None:
    made = cluster(2)
    arguments = ("matmul", "--json", "-", "--join-timeout", "10")
    found = held(made, lambda: process(made, 1, "ddoctor.probing.worker"), *arguments)
    assert found["verdict"] == "incomplete"
    first = found["findings"][0]
    assert first["cause"] == "rank-missing-at-init"
    assert first["where"]["ranks"] == [1]
    assert first["where"]["hosts"] == ["node-1"]
    assert "is stopped by a signal" in first["because"]


@pytest.mark.ward
def test_a_rank_that_never_speaks(cluster: MakeCluster) -> None:
    made = cluster(2)
    arguments = ("matmul", "--json", "-", "--join-timeout", "5")
    found = held(made, lambda: process(made, 1, "ddoctor.probe"), *arguments)
    assert found["verdict"] == "incomplete"
    first = found["findings"][0]
    assert first["cause"] == "rank-missing-at-init"
    assert first["where"]["ranks"] == [1]
    assert "rank 1 of 2 did not reach" in first["because"]
    assert "1 did, from node-0" in first["because"]


@pytest.mark.ward
def test_a_rank_stopped_between_two_collectives(cluster: MakeCluster) -> None:
    made = cluster(2)

    def between() -> psutil.Process:
        worker = process(made, 1, "ddoctor.probing.worker")
        lines = journal(worker, 1)
        while not (lines.exists() and "round" in lines.read_text()):
            assert worker.is_running()
            time.sleep(0.01)
        return worker

    found = held(made, between, "allreduce", "--json", "-")
    first = found["findings"][0]
    assert first["cause"] == "rank-stuck-outside-collective"
    assert first["where"]["ranks"] == [1]
    assert first["where"]["hosts"] == ["node-1"]
    assert "round" in first["because"]


@pytest.mark.ward
def test_an_interface_that_is_not_there_on_one_host(cluster: MakeCluster) -> None:
    made = cluster(2)
    command = (*made.torchrun, *PROBE, "matmul", "--no-arms", "--json", "-")
    absent = {"GLOO_SOCKET_IFNAME": "absent7"}
    started = [
        made.start(made.nodes[0], *command),
        made.start(made.nodes[1], *command, environment=absent),
    ]
    first = report([*map(outcome, started)])["findings"][0]
    assert first["cause"] == "socket-interface-wrong"
    assert first["where"]["hosts"] == ["node-1"]
    assert "GLOO_SOCKET_IFNAME=absent7" in first["because"]


@pytest.mark.ward
def test_two_hosts_without_a_way_between_them(cluster: MakeCluster) -> None:
    made = cluster(3)
    for node, other in ((made.nodes[1], made.nodes[2]), (made.nodes[2], made.nodes[1])):
        line = ("ip", "route", "add", "unreachable", other.address)
        subprocess.run([*node.within, *line], check=True)
    arguments = ("matmul", "--json", "-", "--join-timeout", "20")
    found = report(made.run(*made.torchrun, *PROBE, *arguments))
    first = found["findings"][0]
    assert first["cause"] == "network-unreachable"
    assert first["where"]["hosts"] == ["node-1", "node-2"]
    assert "found no route" in first["because"]
