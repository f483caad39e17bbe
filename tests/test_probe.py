"""`torchrun -m ddoctor.probe` on one host: two ranks on gloo, one report."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ddoctor.proc import processes
from tests.conftest import STEERING

ROOT = Path(__file__).parent.parent
MARK = "DDOCTOR_TEST_PROBE"
TORCHRUN = (str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node=2")
ACCELERATE = (
    str(Path(sys.executable).with_name("accelerate")),
    *("launch", "--multi_gpu", "--num_processes=2", "--main_process_port=0"),
)
# As root, and also where there are fewer cores than ranks.
OPEN_MPI = (
    "OMPI_ALLOW_RUN_AS_ROOT=1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    "OMPI_MCA_rmaps_base_oversubscribe=1",
)
MPIRUN = ("env", *OPEN_MPI, "mpirun", "-np", "2", sys.executable)
LIMIT_SECONDS = 240

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the probe in a folder whose modules must not be imported; nothing may stay behind."""
    (tmp_path / "queue.py").write_text("raise SystemExit('the wrong one')\n")
    mark = {MARK: tmp_path.name + str(os.getpid())}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(STEERING)}
    environment = inherited | mark | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}

    def run(*arguments: str, launcher: tuple[str, ...] = TORCHRUN) -> subprocess.Popen[str]:
        module = ("-m", "ddoctor.probe")
        command = [*launcher, *module, *arguments] if launcher else [sys.executable, *module]
        return subprocess.Popen(
            command,
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    yield run
    left = [one for one in processes.carrying(**mark) if one.status() != psutil.STATUS_ZOMBIE]
    processes.end(0.0, **mark)
    assert left == []


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=LIMIT_SECONDS)
    return process.returncode, output, errors


def worker(process: subprocess.Popen[str], rank: int, module: str) -> psutil.Process:
    """The process of a rank, once it is there."""
    while True:
        assert process.poll() is None
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if child.environ().get("RANK") == str(rank) and module in child.cmdline():
                    return child
        time.sleep(0.05)


def test_one_report_and_the_evidence_of_all(start: Start, tmp_path: Path) -> None:
    code, output, errors = ended(start("matmul", "--json", "-", "--bundle", "evidence.json"))
    assert code == 0, errors
    report = json.loads(output)
    assert report["command"] == "probe"
    assert report["verdict"] == "healthy"
    assert (report["world"]["ranks"], report["world"]["backend"]) == (2, "gloo")
    bundle = json.loads((tmp_path / "evidence.json").read_text())
    sections = {section["type"]: section for section in bundle["sections"]}
    assert len(sections["matmul"]["rates"]) == 2
    assert [rank["joined"] for rank in sections["joining"]["ranks"]] == [True, True]
    hosts = {section["host"] for section in bundle["sections"]}
    assert hosts == {"", *report["world"]["hosts"]}


def test_an_unknown_probe_is_one_line(start: Start) -> None:
    code, output, errors = ended(start("matmull"))
    assert (code, output) == (1, "")
    assert errors.count("ddoctor: there is no probe 'matmull'; did you mean 'matmul'?") == 2
    assert "Traceback (most recent call last):\n  File" in errors, "torchrun's own, about itself"
    assert "the wrong one" not in errors


def test_without_a_launcher_it_says_how_to_start_it(start: Start) -> None:
    code, output, errors = ended(start(launcher=()))
    assert (code, output) == (2, "")
    assert errors.startswith("ddoctor: no launcher started this")
    assert len(errors.splitlines()) == 1


@pytest.mark.ward
@pytest.mark.parametrize("launcher", [ACCELERATE, MPIRUN])
def test_other_launchers(start: Start, launcher: tuple[str, ...]) -> None:
    if shutil.which(next(word for word in launcher if word not in ("env", *OPEN_MPI))) is None:
        pytest.skip("there is no mpirun (openmpi-bin or mpich)")
    code, output, errors = ended(start("matmul", "--json", "-", launcher=launcher))
    assert code == 0, output + errors
    report = json.loads(output[output.index("{") :])
    assert (report["verdict"], report["world"]["ranks"]) == ("healthy", 2)


@pytest.mark.ward
def test_a_rank_stopped_in_the_middle_is_named(start: Start) -> None:
    process = start("matmul", "--json", "-", "--join-timeout", "15")
    worker(process, 1, "ddoctor.probing.worker").send_signal(signal.SIGSTOP)
    code, output, errors = ended(process)
    assert code == 1, errors
    report = json.loads(output)
    assert report["verdict"] == "incomplete"
    assert report["findings"][0]["where"]["ranks"] == [1]
    assert "stopped by a signal" in report["findings"][0]["because"]


@pytest.mark.ward
def test_an_interruption_leaves_nothing_behind(start: Start) -> None:
    process = start("matmul", "--json", "-")
    worker(process, 1, "ddoctor.probing.worker")
    process.send_signal(signal.SIGINT)
    code, output, _ = ended(process)
    assert code != 0
    assert json.loads(output)["verdict"] == "incomplete"
