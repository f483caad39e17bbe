"""Four hosts on a switch, of which one is slow: its cable, one direction of it, or its CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster, MakeCluster, Node, outcome
from tests.namespace import Within

# A cable that fell back to Fast Ethernet; gloo sends a hundred times as much over a virtual one.
SHAPER = ("tbf", "rate", "100mbit", "burst", "32kb", "latency", "50ms")


def examined(
    made: Cluster,
    folder: Path,
    *,
    within: Mapping[int, Sequence[str]] | None = None,
    cgroup: Mapping[int, Path] | None = None,
) -> Mapping[str, Any]:
    """The report of the pairs on all hosts, each within a separate command or cgroup."""
    probe = ("-m", "ddoctor.probe", "pairs", "--data=/usr", f"--json={folder / 'report.json'}")
    started = [
        made.start(
            node,
            *(within or {}).get(node.index, ()),
            *made.torchrun,
            *probe,
            environment={"OMP_NUM_THREADS": "1"},
        )
        for node in made.nodes
    ]
    for index, processes in (cgroup or {}).items():
        # From outside: the namespace of a host has a /sys of its own, without cgroups.
        processes.write_text(str(started[index].pid))
    outputs = [outcome(process) for process in started]
    assert (folder / "report.json").exists(), outputs
    report: Mapping[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def found(report: Mapping[str, Any], *causes: str) -> list[Mapping[str, Any]]:
    """The findings of these causes. Of others it is not spoken here: the machine's own settings
    are found on every host alike."""
    assert report["verdict"] != "incomplete", report["crashed"]
    return [finding for finding in report["findings"] if finding["cause"] in causes]


def slow_towards_the_switch(node: Node) -> None:
    _shape(node.within, "eth0")


def slow_from_the_switch(made: Cluster, node: Node) -> None:
    _shape(made.switch, node.name)


def _shape(within: Within, interface: str) -> None:
    line = ("tc", "qdisc", "add", "dev", interface, "root", *SHAPER)
    done = subprocess.run([*within, *line], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no traffic shaping here: {done.stderr.strip()}")


@contextmanager
def neighbours(number: int, cpu: int) -> Iterator[None]:
    """Processes that keep a CPU busy, each in its own session: the scheduler groups by session."""
    busy = ("taskset", "--cpu-list", str(cpu), sys.executable, "-c", "while True: pass")
    started = [subprocess.Popen(busy, start_new_session=True) for _ in range(number)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


# The host gets a quarter of a CPU: far from what the machine's own neighbours cost the others.
NEIGHBOURS = 3

LINK, RANK = "slow-network-link", "straggler-rank"


@pytest.mark.ward
def test_sound_hosts(cluster: MakeCluster, tmp_path: Path) -> None:
    assert found(examined(cluster(4), tmp_path), LINK, RANK) == []


@pytest.mark.ward
def test_a_slow_uplink(cluster: MakeCluster, tmp_path: Path) -> None:
    made = cluster(4)
    slow_towards_the_switch(made.nodes[2])
    slow_from_the_switch(made, made.nodes[2])
    (finding,) = found(examined(made, tmp_path), LINK, RANK)
    assert finding["cause"] == LINK
    assert finding["where"]["hosts"] == ["node-2"]
    assert "node-2 is slow in both directions, with every peer" in finding["because"]
    assert finding["evidence"][0]["value"] < 0.02


@pytest.mark.ward
def test_one_direction_of_a_host(cluster: MakeCluster, tmp_path: Path) -> None:
    made = cluster(4)
    slow_towards_the_switch(made.nodes[1])
    (finding,) = found(examined(made, tmp_path), LINK, RANK)
    assert finding["cause"] == LINK
    assert finding["where"]["hosts"] == ["node-1"]
    assert "node-1 sends slowly to every peer, and receives normally" in finding["because"]


@pytest.mark.ward
def test_two_hosts_each_in_another_direction(cluster: MakeCluster, tmp_path: Path) -> None:
    made = cluster(4)
    slow_towards_the_switch(made.nodes[1])
    slow_from_the_switch(made, made.nodes[3])
    findings = found(examined(made, tmp_path), LINK, RANK)
    assert sorted(finding["because"].partition(" slowly")[0] for finding in findings) == [
        "node-1 sends",
        "node-3 receives",
    ]


@pytest.mark.ward
def test_a_host_with_busy_neighbours(cluster: MakeCluster, tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("the busy processes need a separate CPU")
    confined = ("taskset", "--cpu-list", str(cpus[-1]))
    with neighbours(NEIGHBOURS, cpus[-1]):
        report = examined(cluster(4), tmp_path, within={3: confined})
    (finding,) = found(report, LINK, RANK)
    assert finding["cause"] == RANK
    assert finding["where"]["hosts"] == ["node-3"]


@pytest.mark.ward
def test_a_host_with_a_cpu_quota(cluster: MakeCluster, tmp_path: Path, part_of_a_cpu: Path) -> None:
    report = examined(cluster(4), tmp_path, cgroup={2: part_of_a_cpu})
    (finding,) = found(report, LINK, RANK)
    assert finding["cause"] == RANK
    assert finding["where"]["hosts"] == ["node-2"]
