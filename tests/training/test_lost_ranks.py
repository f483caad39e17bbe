"""Ranks that stop, vanish, or cannot meet: said in time, and the script's own run comes first."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from ddoctor.proc import folder
from tests.conftest import free_port
from tests.training.conftest import LIMIT_SECONDS, UNDER, MakeTraining, Training

SCRIPT = """
    import os, sys, time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(16, 16))
    # Workers that send tensors open sockets in a folder of multiprocessing.
    loader = torch.utils.data.DataLoader(torch.randn(10**6, 16), batch_size=4, num_workers=1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    # In one piece: both ranks write to the same pipe.
    os.write(1, b"begun\\n")
    for step, batch in zip(range(int(sys.argv[1])), loader):
        time.sleep(0.01)
        model(batch).sum().backward()
        sgd.step()
        sgd.zero_grad()
"""
NEAR_PORTS = 8
# It takes 1 to 8 s on an idle machine; after 30 s, torchrun kills its ranks.
TOLD_SECONDS = 25
# A rank that vanishes without a launcher that notices.
LOST_SECONDS = 35
Ranks = list["subprocess.Popen[str]"]


@contextmanager
def by_hand(script: Training, port: int, *options: str, steps: int) -> Iterator[Ranks]:
    """Two ranks without a launcher, as two hosts of a cluster would start them."""
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                script.started(
                    *("env", *(f"{name}={value}" for name, value in rendezvous.items())),
                    *(f"RANK={rank}", f"LOCAL_RANK={rank}", "LOCAL_WORLD_SIZE=2"),
                    *(sys.executable, *UNDER, *options, str(script.script), str(steps)),
                )
            )
            for rank in range(2)
        ]
        yield ranks


def begun(ranks: Ranks) -> None:
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "begun\n"


def ended(ranks: Ranks) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each."""
    told = [rank.communicate(timeout=LIMIT_SECONDS) for rank in ranks]
    return [(rank.returncode, *texts) for rank, texts in zip(ranks, told, strict=True)]


def scripts(rank: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes of a rank: its supervisor, and its script."""
    return [psutil.Process(rank.pid), *psutil.Process(rank.pid).children()]


@contextmanager
def taken(*ports: int) -> Iterator[None]:
    """Another program listens at these ports, and never answers."""
    with ExitStack() as stack:
        for port in ports:
            one = stack.enter_context(socket.socket())
            one.bind(("", port))
            one.listen()
        yield


@pytest.mark.ward
def test_a_port_that_is_taken_is_passed_over(training: MakeTraining) -> None:
    port = free_port()
    script = training(SCRIPT)
    report = script.script.parent / "report.json"
    with (
        taken(port + 1),
        by_hand(script, port, "--no-prove", f"--json={report}", steps=40) as ranks,
    ):
        (code, _, stderr), (other, _, _) = ended(ranks)
    assert (code in (0, 1), other) == (True, 0), stderr
    assert json.loads(report.read_text())["world"]["ranks"] == 2
    assert "not recorded" not in stderr


@pytest.mark.ward
def test_without_any_port_the_script_runs_alone(training: MakeTraining) -> None:
    port = free_port()
    script = training(SCRIPT)
    near = range(port + 1, port + 1 + NEAR_PORTS)
    with taken(*near), by_hand(script, port, "--no-prove", steps=40) as ranks:
        code, stdout, stderr = ended(ranks[:1])[0]
        assert (code, stdout) == (0, "begun\n"), stderr
        assert "the script continues, and is not recorded" in stderr


@pytest.mark.ward
def test_a_rank_that_vanishes_is_named(training: MakeTraining) -> None:
    """Stopped as a whole, a rank is as silent as a host that was switched off."""
    script = training(SCRIPT)
    report = script.script.parent / "report.json"
    options = ("--no-prove", "--steps=100000", f"--json={report}")
    with by_hand(script, free_port(), *options, steps=100_000) as ranks:
        begun(ranks)
        time.sleep(5)
        for process in scripts(ranks[1]):
            process.suspend()
        code, _, stderr = ended(ranks[:1])[0]
        for process in scripts(ranks[1]):
            process.resume()
    assert code == 1, stderr
    first = json.loads(report.read_text())["findings"][0]
    assert first["cause"] == "dead-rank"
    assert first["where"]["ranks"] == [1]
    assert "did not respond any more" in first["because"]


@pytest.mark.ward
def test_a_rank_that_is_killed_without_a_launcher_is_named(training: MakeTraining) -> None:
    """The script of rank 0 fails at once, long before its supervisor knows that rank 1 is lost."""
    script = training(SCRIPT)
    report = script.script.parent / "report.json"
    options = ("--no-prove", "--steps=100000", f"--json={report}")
    with by_hand(script, free_port(), *options, steps=100_000) as ranks:
        begun(ranks)
        time.sleep(3)
        ranks[1].kill()
        began = time.monotonic()
        code, _, stderr = ended(ranks[:1])[0]
    assert time.monotonic() - began < LOST_SECONDS
    assert code == 1, stderr
    first = json.loads(report.read_text())["findings"][0]
    assert first["where"]["ranks"] == [1]


@pytest.mark.ward
def test_a_rank_that_starts_after_the_end_of_its_launcher_ends(training: MakeTraining) -> None:
    """Its store, which torchrun opened before, is gone."""
    script = training(SCRIPT)
    store = {"MASTER_PORT": str(free_port()), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    words = [
        f"{name}={value}" for name, value in {"MASTER_ADDR": "127.0.0.1", **store, **rank}.items()
    ]
    began = time.monotonic()
    with script.started("env", *words, sys.executable, *UNDER, "train.py", "10") as process:
        code, _, stderr = ended([process])[0]
        assert script.running() == []
    assert code == 2
    assert "has the launcher been killed?" in stderr
    assert time.monotonic() - began < 2 * LOST_SECONDS


@pytest.mark.ward
def test_a_stopped_script_is_said_and_left_to_its_user(training: MakeTraining) -> None:
    script = training(SCRIPT)
    with by_hand(script, free_port(), "--no-prove", "--steps=100000", steps=1500) as ranks:
        begun(ranks)
        time.sleep(3)
        _, stopped = scripts(ranks[1])
        stopped.send_signal(signal.SIGSTOP)
        assert ranks[0].stderr is not None
        line = ranks[0].stderr.readline()
        stopped.send_signal(signal.SIGCONT)
        (code, _, stderr), (other, _, _) = ended(ranks)
    assert f"rank 1 (pid {stopped.pid} on " in line
    assert f"kill -CONT {stopped.pid}" in line
    assert (code in (0, 1), other) == (True, 0), stderr


@pytest.mark.ward
def test_ctrl_z_stops_the_script_too(training: MakeTraining) -> None:
    """It leads a session of its own, which the terminal does not reach."""
    script = training("import time; print('begun', flush=True); time.sleep(8); print('the end')")
    with script.started(sys.executable, *UNDER, str(script.script)) as rank:
        begun([rank])
        both = scripts(rank)
        for number, stopped in ((signal.SIGTSTP, True), (signal.SIGCONT, False)):
            rank.send_signal(number)
            deadline = time.monotonic() + 10
            while any((one.status() == psutil.STATUS_STOPPED) != stopped for one in both):
                assert time.monotonic() < deadline, both
                time.sleep(0.05)
        ((code, stdout, stderr),) = ended([rank])
    assert code in (0, 2), stderr
    assert stdout.startswith("the end\n")


@pytest.mark.ward
def test_a_rank_that_hears_too_late_where_to_stop_has_not_failed(training: MakeTraining) -> None:
    """Its host is so busy that the others have stopped before, and broken its connections."""
    script = training(SCRIPT)
    report = script.script.parent / "report.json"
    options = ("--no-prove", "--steps=20", f"--json={report}")
    with by_hand(script, free_port(), *options, steps=100_000) as ranks:
        begun(ranks)
        busy, its_script = scripts(ranks[1])
        busy.suspend()
        deadline = time.monotonic() + LIMIT_SECONDS
        while its_script.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        busy.resume()
        (code, _, stderr), (other, _, failure) = ended(ranks)
    assert "Connection closed by peer" in failure
    told = json.loads(report.read_text())
    assert (code in (0, 1), other) == (True, 0), stderr
    assert [one for one in told["findings"] if one["severity"] == "error"] == []


def supervisor(launcher: subprocess.Popen[str], rank: int) -> psutil.Process:
    (found,) = (
        one
        for one in psutil.Process(launcher.pid).children()
        if one.environ().get("RANK") == str(rank)
    )
    return found


@pytest.mark.ward
@pytest.mark.parametrize(
    ("victim", "number"),
    [
        (None, signal.SIGKILL),
        (None, signal.SIGQUIT),
        (0, signal.SIGKILL),
        (1, signal.SIGKILL),
        (1, signal.SIGQUIT),
    ],
)
def test_what_a_lost_supervisor_leaves_is_swept(
    training: MakeTraining,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    victim: int | None,
    number: int,
) -> None:
    """``victim``: the supervisor of this rank; None: the launcher."""
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    script = training(SCRIPT, "100000")
    with script.started(*script.under("--steps=100000")) as launcher:
        begun([launcher])
        time.sleep(3)
        assert len([*temporary.glob("ddoctor-*/listener-*")]) >= 2, "the workers send tensors"
        if victim is None:
            launcher.send_signal(number)
        else:
            supervisor(launcher, victim).send_signal(number)
        began = time.monotonic()
        trained = script.outcome(launcher)
        seconds = time.monotonic() - began
        while script.running():
            assert time.monotonic() < began + LIMIT_SECONDS
            time.sleep(0.1)
    assert seconds < TOLD_SECONDS, trained.stderr
    assert not [line for line in trained.stderr.splitlines() if "ddoctor/training" in line]
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    folder.sweep()
    # torchrun's own folder stays if it is killed.
    assert [one.name for one in temporary.iterdir() if not one.name.startswith("torch")] == []
