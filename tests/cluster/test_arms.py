"""Two hosts with two cables; gloo's default choice is the slow cable."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster, MakeCluster

SHAPER = ("tbf", "rate", "100mbit", "burst", "32kb", "latency", "50ms")
PROBES = ("-m", "ddoctor.probe", "interfaces", "allreduce")


def second_cable(made: Cluster) -> None:
    first, second = (node.within for node in made.nodes)
    lines = (
        (first, f"link add eth1 type veth peer name eth1 netns {made.nodes[1].namespace}"),
        (first, "addr add 10.78.0.1/24 dev eth1"),
        (first, "link set eth1 up"),
        (second, "addr add 10.78.0.2/24 dev eth1"),
        (second, "link set eth1 up"),
    )
    for within, line in lines:
        subprocess.run([*within, "ip", *line.split()], check=True)


def slow(made: Cluster, interface: str) -> None:
    for node in made.nodes:
        line = ("tc", "qdisc", "add", "dev", interface, "root", *SHAPER)
        done = subprocess.run([*node.within, *line], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no traffic shaping here: {done.stderr.strip()}")


def examined(made: Cluster, folder: Path, *arguments: str) -> Mapping[str, Any]:
    path = folder / "report.json"
    outputs = made.run(*made.torchrun, *PROBES, f"--json={path}", *arguments)
    assert path.exists(), outputs
    report: Mapping[str, Any] = json.loads(path.read_text())
    return report


@pytest.mark.ward
def test_the_faster_of_two_interfaces_is_named_and_proven(
    cluster: MakeCluster, tmp_path: Path
) -> None:
    made = cluster(2)
    second_cable(made)
    slow(made, "eth0")
    (finding,) = (
        one for one in examined(made, tmp_path)["findings"] if one["cause"] == "slow-network-link"
    )
    assert "gloo uses eth0" in finding["because"]
    fix = finding["fixes"][0]
    assert fix["paste"] == "export GLOO_SOCKET_IFNAME=eth1"
    assert fix["verified"]["after"] > 3 * fix["verified"]["before"] > 0


@pytest.mark.ward
def test_a_slow_second_cable_is_nobodys_trouble(cluster: MakeCluster, tmp_path: Path) -> None:
    made = cluster(2)
    second_cable(made)
    slow(made, "eth1")
    found = examined(made, tmp_path, "--no-arms")
    astray = ("slow-network-link", "socket-interface-wrong")
    assert [one for one in found["findings"] if one["cause"] in astray] == []
