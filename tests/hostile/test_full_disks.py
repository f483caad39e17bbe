"""A full disk costs the record or the report, and never the training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.surroundings import (
    RUN,
    TOGETHER,
    TORCHRUN,
    Within,
    after,
    run,
    script,
    tmpfs,
)

DOCTOR = (sys.executable, "-m", "ddoctor", "doctor")
FILLING = """
    import os, sys, time
    import torch
    from torch import nn
    model = nn.Linear(64, 64)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3000):
        model(torch.randn(32, 64)).square().mean().backward()
        sgd.step()
        sgd.zero_grad()
        time.sleep(0.01)
        if step == STEP:
            file = open(os.environ["TMPDIR"] + "/full", "wb", buffering=0)
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError as error:
                print(error.strerror)
    print("the end")
    sys.exit(5)
"""


def full(folder: Path, size: str) -> Within:
    """Neither the temporary folder nor the memory has more room than that."""
    (folder / "temporary").mkdir()
    prepare = "\n".join(
        [
            tmpfs(folder / "temporary", size),
            tmpfs("/dev/shm", "8k"),
            f"export TMPDIR='{folder}/temporary'",
        ]
    )
    return after(prepare, "--mount")


@pytest.mark.parametrize(
    "size",
    [
        "8k",
        pytest.param("1m", marks=pytest.mark.ward),
        pytest.param("5m", marks=pytest.mark.ward),
    ],
)
def test_no_room_from_the_start(tmp_path: Path, size: str) -> None:
    within = full(tmp_path, size)
    ran = run(*RUN, sys.executable, str(script(tmp_path)), within=within, environment={"CODE": "3"})
    assert (ran.code, ran.ends) == (3, 1)
    (line,) = ran.said
    assert f"cannot write to {tmp_path}/temporary: No space left on device" in line
    assert line.endswith("; the script continues, and is not recorded")


@pytest.mark.ward
@pytest.mark.parametrize("size", ["8m", "11m"])
def test_room_for_one_rank_of_two(tmp_path: Path, size: str) -> None:
    """A rank that is recorded would stop before the other one."""
    within = full(tmp_path, size)
    ran = run(*RUN, *TORCHRUN, "2", str(script(tmp_path, TOGETHER)), within=within)
    assert (ran.code, ran.ends) == (0, 2)
    (line,) = ran.said
    assert "No space left on device; the script continues, and is not recorded" in line


@pytest.mark.ward
@pytest.mark.parametrize("step", [0, 5, 150])
def test_the_disk_fills_in_the_middle(tmp_path: Path, step: int) -> None:
    """Also once rank 0 has set the step at which to stop, which then does not count."""
    path = script(tmp_path, FILLING.replace("STEP", str(step)))
    ran = run(*RUN, "--steps", "2900", sys.executable, str(path), within=full(tmp_path, "24m"))
    assert (ran.code, ran.ends) == (5, 1), ran.stderr
    (line,) = ran.said
    assert "No space left on device" in line


def test_a_record_goes_to_memory_if_the_disk_is_full(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    prepare = f"{tmpfs(tmp_path / 'temporary', '64k')}\nexport TMPDIR='{tmp_path}/temporary'"
    code = "from ddoctor.proc.folder import TemporaryFolder as one; print(one().path.parent)"
    ran = run(sys.executable, "-c", code, within=after(prepare, "--mount"))
    assert ran.stdout == "/dev/shm\n"


def test_what_cannot_be_written_leaves_the_rest(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    files = ("--no-probes", "--bundle", "/dev/full", "--json", str(report))
    ran = run(*DOCTOR, *files)
    assert ran.code == 2
    assert ran.said == ["ddoctor: cannot write the bundle /dev/full: No space left on device"]
    assert json.loads(report.read_text())["verdict"]
    assert "software" in ran.stdout


@pytest.mark.parametrize("command", ["list", pytest.param("doctor", marks=pytest.mark.ward)])
def test_stdout_on_a_full_disk(command: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ddoctor", command], stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 2
    assert done.stderr == b"ddoctor: cannot write to stdout: No space left on device\n"


@pytest.mark.ward
def test_stderr_on_a_full_disk(tmp_path: Path) -> None:
    within = after("exec 2> /dev/full")
    ran = run(*RUN, sys.executable, str(script(tmp_path)), within=within, environment={"CODE": "3"})
    assert (ran.code, ran.ends) == (3, 1)


@pytest.mark.ward
def test_a_run_whose_report_cannot_be_written_ends_as_the_script(tmp_path: Path) -> None:
    words = (*RUN, "--bundle", "/dev/full", sys.executable, str(script(tmp_path)))
    for code in "0", "3":
        ran = run(*words, environment={"CODE": code})
        assert (ran.code, ran.ends) == (int(code) or 2, 1)
        assert ran.said == ["ddoctor: cannot write the bundle /dev/full: No space left on device"]
        assert "script" in ran.stdout


@pytest.mark.ward
def test_probes_say_that_there_is_no_room(tmp_path: Path) -> None:
    """A rank that cannot write its journal is no dead rank."""
    within = full(tmp_path, "1m")
    report = tmp_path / "report.json"
    doctor = run(*DOCTOR, "--probe", "matmul", "--json", str(report), within=within)
    told = json.loads(report.read_text())
    assert doctor.code in (1, 2)
    assert "dead-rank" not in [one["cause"] for one in told["findings"]]
    (crashed,) = told["crashed"]
    assert "has no room for temporary files: set TMPDIR to a folder with 16 MiB" in crashed["error"]
    probe = run(*TORCHRUN, "2", "-m", "ddoctor.probe", "matmul", within=within)
    assert probe.code != 0
    assert any("has no room for temporary files: set TMPDIR" in line for line in probe.said)


@pytest.mark.ward
def test_events_on_a_disk_that_is_full(tmp_path: Path) -> None:
    """A whole run goes on without them, and says so once."""
    (tmp_path / "small").mkdir()
    prepare = f"{tmpfs(tmp_path / 'small', '8k')}\nhead -c 8192 /dev/zero > {tmp_path}/small/full"
    events = tmp_path / "small" / "events.jsonl"
    ran = run(
        *(*RUN[:-1], "--steps", "all", "--events", str(events)),
        *(sys.executable, str(script(tmp_path))),
        within=after(prepare, "--mount"),
        environment={"CODE": "3"},
    )
    assert (ran.code, ran.ends) == (3, 1), ran.stderr
    assert [line for line in ran.said if "No space left on device" in line], ran.said
