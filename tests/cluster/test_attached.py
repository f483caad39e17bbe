"""A run on two hosts hangs: `attach` samples each host, and `diagnose` joins the bundles."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import LIMIT_SECONDS, Cluster, MakeCluster, Output, outcome
from tests.cluster.test_links import slow_towards_the_switch

pytestmark = pytest.mark.ward

DDOCTOR = (sys.executable, "-m", "ddoctor")
SCRIPT = """
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


def load(step):
    if rank == 1 and step == 20:
        open("stands", "w").close()
        time.sleep(1_000_000)


for step in range(1_000_000):
    load(step)
    dist.all_reduce(torch.ones(1000))
"""


EXCHANGE = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
gradients = torch.ones(1_000_000)
for step in range(1_000_000):
    torch.randn(300, 300) @ torch.randn(300, 300)
    dist.all_reduce(gradients)
    if step == 5:
        open(f"trains{dist.get_rank()}", "w").close()
"""


def wait_for(path: Path, started: Sequence[subprocess.Popen[str]]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline
        assert all(one.poll() is None for one in started)
        time.sleep(0.2)


def end(started: Sequence[subprocess.Popen[str]]) -> None:
    for one in started:
        # Its ranks have its pipes, too, and end with the cluster.
        with one:
            one.kill()


def looks(
    hosts: Cluster, started: Sequence[subprocess.Popen[str]], folder: Path
) -> Sequence[Output]:
    """At each host, for 4 s."""
    every = [
        hosts.start(
            node,
            *(*DDOCTOR, "attach", str(launcher.pid), "--seconds", "4"),
            *("--bundle", str(folder / f"{node.name}.json"), "--json", "-"),
        )
        for node, launcher in zip(hosts.nodes, started, strict=True)
    ]
    return list(map(outcome, every))


def joined(hosts: Cluster, folder: Path) -> Sequence[Mapping[str, Any]]:
    """The findings of both bundles together."""
    bundles = [str(folder / f"{node.name}.json") for node in hosts.nodes]
    (told,) = hosts.run(*DDOCTOR, "diagnose", *bundles, "--json", "-", nodes=hosts.nodes[:1])
    assert told.stdout, told.stderr
    findings: Sequence[Mapping[str, Any]] = json.loads(told.stdout)["findings"]
    return findings


@pytest.mark.parametrize("slow", [True, False])
def test_a_slow_link(cluster: MakeCluster, tmp_path: Path, slow: bool) -> None:
    hosts = cluster(2)
    if slow:
        slow_towards_the_switch(hosts.nodes[1])
    (tmp_path / "train.py").write_text(EXCHANGE)
    started = [
        hosts.start(node, *hosts.torchrun, "train.py", folder=tmp_path) for node in hosts.nodes
    ]
    wait_for(tmp_path / "trains0", started)
    wait_for(tmp_path / "trains1", started)
    looks(hosts, started, tmp_path)
    findings = joined(hosts, tmp_path)
    assert all(one.poll() is None for one in started)
    end(started)
    told = [one for one in findings if one["cause"] == "slow-network-link"]
    if slow:
        assert findings[0] in told
        assert findings[0]["where"]["hosts"] == ["node-1"]
        assert "eth0" in findings[0]["because"]
    else:
        assert told == []


def test_the_culprit_is_on_the_other_host(cluster: MakeCluster, tmp_path: Path) -> None:
    hosts = cluster(2)
    (tmp_path / "train.py").write_text(SCRIPT)
    started = [
        hosts.start(node, *hosts.torchrun, "train.py", folder=tmp_path) for node in hosts.nodes
    ]
    wait_for(tmp_path / "stands", started)
    first, second = looks(hosts, started, tmp_path)
    # The one alone knows that it is not healthy, and where to look.
    assert first.exit_code == 2, first
    (judging,) = json.loads(first.stdout)["crashed"]
    assert "1 rank on other hosts was not seen" in judging["error"]
    assert json.loads(second.stdout)["findings"][0]["where"]["ranks"] == [1]
    finding = joined(hosts, tmp_path)[0]
    assert finding["cause"] == "rank-stuck-outside-collective"
    assert finding["where"]["ranks"] == [1]
    assert finding["where"]["hosts"] == ["node-1"]
    assert "`time.sleep(1_000_000)`" in finding["because"]
    assert "rank 0 waits in all_reduce at train.py:18" in finding["because"]
    assert all(one.poll() is None for one in started)
    end(started)
