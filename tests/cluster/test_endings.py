"""Runs over a network that end badly: the report, and that no process stays behind."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from sysconfig import get_path
from typing import Any

import psutil
import pytest

from ddoctor.proc import processes
from tests.cluster.conftest import MARK, Cluster, MakeCluster, Output, outcome
from tests.cluster.test_joining import PROBE, journal, process, report

# The mount is seen by this command alone.
OTHERWISE = ("sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"')

# Every Python process of one host runs this first.
WRONG = """
import os
if "DDOCTOR_FOLDER" in os.environ:
    import torch.distributed as dist
    right = dist.all_reduce
    def all_reduce(tensor, *arguments, **options):
        work = right(tensor, *arguments, **options)
        tensor.view(-1)[-1] += 1
        return work
    dist.all_reduce = all_reduce
"""


def midway(made: Cluster, rank: int) -> psutil.Process:
    """The measuring process of a rank, once collectives run."""
    worker = process(made, rank, "ddoctor.probing.worker")
    lines = journal(worker, rank)
    while not (lines.exists() and "round" in lines.read_text()):
        assert worker.is_running()
        time.sleep(0.01)
    return worker


def left(made: Cluster) -> list[list[str]]:
    """Processes that survive a finished run; zombies do not count."""
    marked = processes.carrying(**{MARK: made.mark})
    return [one.cmdline() for one in marked if one.status() != psutil.STATUS_ZOMBIE]


def begin(made: Cluster, *arguments: str) -> list[subprocess.Popen[str]]:
    return [made.start(node, *made.torchrun, *PROBE, *arguments) for node in made.nodes]


def first_finding(outputs: list[Output]) -> Mapping[str, Any]:
    found = report(outputs)
    assert found["verdict"] == "incomplete", found
    first: Mapping[str, Any] = found["findings"][0]
    return first


def lines(output: Output) -> list[str]:
    """The error of the rank itself; torchrun repeats it in its log."""
    return [one for one in output.stderr.splitlines() if one.startswith("ddoctor: ")]


@pytest.mark.ward
@pytest.mark.parametrize("module", ["ddoctor.probing.worker", "ddoctor.probe"])
def test_a_rank_that_is_killed(cluster: MakeCluster, module: str) -> None:
    made = cluster(3)
    started = begin(made, "collectives", "--json", "-")
    midway(made, 1)
    process(made, 2, module).kill()
    outputs = [outcome(one) for one in started]
    first = first_finding(outputs)
    assert (first["cause"], first["severity"]) == ("dead-rank", "error")
    assert (first["where"]["hosts"], first["where"]["ranks"]) == (["node-2"], [2])
    assert outputs[0].exit_code == 1
    assert left(made) == []


@pytest.mark.ward
def test_rank_0_is_killed(cluster: MakeCluster) -> None:
    made = cluster(2)
    started = begin(made, "collectives", "--json", "-")
    midway(made, 1)
    process(made, 0, "ddoctor.probe").kill()
    first, second = map(outcome, started)
    assert first.exit_code != 0
    assert second.exit_code != 0
    assert len(lines(second)) == 1, second.stderr
    assert left(made) == []


@pytest.mark.ward
@pytest.mark.parametrize(("host", "number"), [(0, signal.SIGINT), (1, signal.SIGTERM)])
def test_an_interruption(cluster: MakeCluster, host: int, number: signal.Signals) -> None:
    made = cluster(2)
    started = begin(made, "collectives", "matmul", "--json", "-")
    midway(made, 1)
    started[host].send_signal(number)
    outputs = [outcome(one) for one in started]
    assert report(outputs)["verdict"] == "incomplete"
    assert left(made) == []


@pytest.mark.ward
def test_bad_input_is_one_line_and_nothing_is_measured(
    cluster: MakeCluster, tmp_path: Path
) -> None:
    made = cluster(2)

    def told(*arguments: str, other: tuple[str, ...] = ()) -> str:
        started = [
            made.start(made.nodes[0], *made.torchrun, *PROBE, *arguments),
            made.start(made.nodes[1], *other, *made.torchrun, *PROBE, *arguments),
        ]
        first, second = map(outcome, started)
        assert first.exit_code != 0
        assert first.stdout == second.stdout == ""
        assert "exitcode  : 2" in first.stderr
        assert left(made) == []
        (line,) = lines(first)
        return line

    assert "there is no probe 'matmull'" in told("matmull")
    missing = tmp_path / "missing" / "report.json"
    assert f"there is no folder {missing.parent}" in told("matmul", "--json", str(missing))

    (own,) = Path(get_path("purelib")).glob("ddoctor-*.dist-info/METADATA")
    other = tmp_path / "METADATA"
    other.write_text(own.read_text().replace("\nVersion: ", "\nVersion: 99."))
    line = told("matmul", other=(*OTHERWISE, str(other), str(own)))
    assert "ddoctor is 99." in line
    assert "on node-1" in line

    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "empty").mkdir()
    hidden = (*OTHERWISE, str(tmp_path / "empty"), str(tmp_path))
    line = told("storage_read", f"--data={data}", other=hidden)
    assert f"rank 1 on node-1: there is no folder {data}" in line


@pytest.mark.ward
def test_only_the_host_of_rank_0_needs_the_folder_and_one_rank_sums_wrongly(
    cluster: MakeCluster, tmp_path: Path
) -> None:
    made = cluster(3)
    folder, planted, empty = (tmp_path / name for name in ("reports", "planted", "empty"))
    for one in (folder, planted, empty):
        one.mkdir()
    (planted / "sitecustomize.py").write_text(WRONG)
    command = (*made.torchrun, *PROBE, "allreduce", "collectives", f"--json={folder / 'r.json'}")
    hidden = (*OTHERWISE, str(empty), str(folder))
    started = [
        made.start(made.nodes[0], *command),
        made.start(made.nodes[1], *hidden, *command),
        made.start(made.nodes[2], *command, environment={"PYTHONPATH": str(planted)}),
    ]
    outputs = [outcome(one) for one in started]
    assert (folder / "r.json").exists(), outputs
    found = json.loads((folder / "r.json").read_text())
    wrong = [one for one in found["findings"] if one["cause"] == "wrong-collective-result"]
    assert wrong, found["findings"]
    for one in wrong:
        assert (one["where"]["hosts"], one["where"]["ranks"]) == (["node-2"], [2]), one
    assert found["verdict"] == "findings"
