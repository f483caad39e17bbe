"""`ddoctor probe` on each host: they join within a limit, and the report names missing hosts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytest

from ddoctor.proc import processes
from tests.cluster.conftest import MARK, Cluster, MakeCluster, Node, Output, outcome

PORT = "29400"
JSON = ("--json", "-")


def door(nodes: int, *words: str, at: str = f"node-0:{PORT}", limit: int = 60) -> tuple[str, ...]:
    """The same command for every host."""
    numbers = (f"--nnodes={nodes}", "--nproc-per-node=1", "--rdzv-endpoint", at)
    start = (sys.executable, "-m", "ddoctor", "probe")
    return (*start, *numbers, f"--join-timeout={limit}", "matmul", *JSON, *words)


def first(output: Output) -> Mapping[str, Any]:
    """The finding that a host reports first."""
    report = json.loads(output.stdout)
    assert report["command"] == "probe"
    assert output.exit_code == 1, output
    found: Mapping[str, Any] = report["findings"][0]
    return found


def line(output: Output) -> str:
    """The one line of a host whose report is another one's."""
    assert (output.exit_code, output.stdout) == (2, ""), output
    (only,) = output.stderr.splitlines()
    assert only.startswith("ddoctor: ")
    return only


def break_way(node: Node, *words: str) -> None:
    subprocess.run([*node.within, "ip", "route", "add", *words], check=True)


@pytest.mark.ward
def test_hosts_that_are_well(cluster: MakeCluster) -> None:
    made = cluster(3)
    outputs = made.run(*door(3, "--rdzv-id=well"))
    report = json.loads(outputs[0].stdout)
    assert report["verdict"] == "healthy", report
    assert report["world"]["hosts"] == ["node-0", "node-1", "node-2"]
    assert report["world"]["ranks"] == 3
    assert [one.exit_code for one in outputs] == [0, 0, 0]
    assert [one.stdout for one in outputs[1:]] == ["", ""]
    assert processes.carrying(**{MARK: made.mark}) == []


@pytest.mark.ward
def test_a_host_that_is_never_started(cluster: MakeCluster) -> None:
    made = cluster(3)
    here, there = made.run(
        *door(3, "--node-rank={node}", limit=6), nodes=(made.nodes[0], made.nodes[2])
    )
    found = first(here)
    assert found["cause"] == "rank-missing-at-init"
    assert f"2 of 3 hosts reached node-0:{PORT} within 6 s: " in found["because"]
    assert "node-2" in found["because"]
    assert found["because"].endswith("node rank 1 did not")
    assert found["where"]["hosts"] == []
    assert "the report is on node-0" in line(there)


def test_the_host_of_the_endpoint_is_never_started(cluster: MakeCluster) -> None:
    made = cluster(2)
    (output,) = made.run(*door(2, limit=2), nodes=made.nodes[1:])
    found = first(output)
    assert found["cause"] == "network-unreachable"
    assert "no process listens" in found["because"]


@pytest.mark.ward
def test_a_name_that_one_host_does_not_know(cluster: MakeCluster) -> None:
    made = cluster(2)
    started = [
        made.start(made.nodes[0], *door(2, limit=5)),
        made.start(made.nodes[1], *door(2, limit=2, at=f"head:{PORT}")),
    ]
    head, other = map(outcome, started)
    assert first(head)["cause"] == "rank-missing-at-init"
    found = first(other)
    assert found["cause"] == "hostname-resolution"
    assert f"head:{PORT}, did not resolve" in found["because"]
    assert found["where"]["hosts"] == ["node-1"]


@pytest.mark.ward
def test_hosts_without_a_way_to_the_endpoint(cluster: MakeCluster) -> None:
    made = cluster(3)
    address = made.nodes[0].address
    break_way(made.nodes[1], "unreachable", address)
    # What node-0 answers to node-2 is dropped.
    break_way(made.nodes[0], "blackhole", made.nodes[2].address)
    head, routeless, filtered = made.run(*door(3, limit=5))
    assert first(head)["cause"] == "rank-missing-at-init"
    for output, words in ((routeless, "found no route"), (filtered, "was not answered")):
        found = first(output)
        assert found["cause"] == "network-unreachable"
        assert words in found["because"]


@pytest.mark.ward
def test_hosts_that_were_given_different_numbers(cluster: MakeCluster) -> None:
    made = cluster(2)
    started = [made.start(node, *door(2 + node.index, limit=5)) for node in made.nodes]
    head, other = map(outcome, started)
    found = first(head)
    assert found["cause"] == "world-size-mismatch"
    assert found["because"] == "--nnodes differs between hosts: 2 on node-0, 3 on node-1"
    assert "different values of --nnodes (2, 3); the report is on node-0" in line(other)


@pytest.mark.ward
def test_two_hosts_with_one_number(cluster: MakeCluster) -> None:
    made = cluster(3)
    rank = ("--node-rank=0", "--node-rank=1", "--node-rank=1")
    started = [made.start(node, *door(3, rank[node.index])) for node in made.nodes]
    for output in map(outcome, started):
        assert "node-1, node-2 have the same --node-rank 1:" in line(output)


@pytest.mark.ward
def test_a_port_that_another_program_has(cluster: MakeCluster) -> None:
    made = cluster(2)
    code = f"""
import socket, time
server = socket.create_server(("", {PORT}))
print("listening", flush=True)
time.sleep(600)
"""
    holder = made.start(made.nodes[0], sys.executable, "-c", code)
    assert holder.stdout is not None
    holder.stdout.readline()
    head, other = made.run(*door(2, limit=2))
    holder.kill()
    holder.communicate()
    assert f"port {PORT} cannot be opened here" in line(head)
    assert "another program listens there" in line(other)


def in_the_measurement(made: Cluster) -> bool:
    return any(
        "ddoctor.probing.worker" in one.cmdline() for one in processes.carrying(**{MARK: made.mark})
    )


@pytest.mark.ward
def test_ctrl_c_ends_everything(cluster: MakeCluster) -> None:
    made = cluster(1)
    command = (sys.executable, "-m", "ddoctor", "probe", *JSON)
    started = made.start(made.nodes[0], *command)
    while not in_the_measurement(made):
        assert started.poll() is None
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    output = outcome(started)
    assert json.loads(output.stdout)["verdict"] == "incomplete"
    assert output.exit_code == 130  # as of a shell, for SIGINT
    assert "Traceback" not in output.stderr
    assert processes.carrying(**{MARK: made.mark}) == []
