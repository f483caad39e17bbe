"""Faults of the host, provoked for real: each is the first finding of the whole command line."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Doctor

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("unshare", "mount", "prlimit", "taskset")),
    reason="needs unshare, mount, prlimit and taskset of util-linux",
)


def with_mount(size: str, folder: Path, then: str = ":") -> tuple[str, ...]:
    """Mount a small tmpfs that nobody else sees, do something in it, and execute the arguments."""
    script = f'mount -t tmpfs -o size={size} tmpfs "{folder}"; cd "{folder}"; {then}; exec "$@"'
    return ("unshare", "--mount", "sh", "-ec", script, "sh")


@pytest.fixture
def may_mount(tmp_path: Path) -> None:
    done = subprocess.run([*with_mount("1m", tmp_path), "true"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"may not mount in a namespace of its own: {done.stderr.strip()}")


@pytest.mark.usefixtures("may_mount")
def test_small_shared_memory(doctor: Doctor) -> None:
    examined = doctor(within=with_mount("16m", Path("/dev/shm")))
    assert examined.exit_code == 1
    assert examined.first["cause"] == "shm-too-small"
    assert "16 MiB" in examined.first["because"]


@pytest.mark.usefixtures("may_mount")
def test_nearly_full_disk(doctor: Doctor, tmp_path: Path) -> None:
    fill = "head -c 63m /dev/zero > checkpoint"
    examined = doctor(within=with_mount("64m", tmp_path, fill))
    assert examined.exit_code == 1
    assert examined.first["cause"] == "disk-full-or-slow"
    assert "working folder" in examined.first["because"]
    assert str(tmp_path) in examined.first["because"]


@pytest.mark.usefixtures("may_mount")
def test_small_but_empty_disk_is_sound(doctor: Doctor, tmp_path: Path) -> None:
    examined = doctor(within=with_mount("64m", tmp_path))
    assert "disk-full-or-slow" not in examined.causes


def test_few_open_files(doctor: Doctor) -> None:
    examined = doctor(within=("prlimit", "--nofile=64:64", "--"))
    assert examined.exit_code == 1
    assert examined.first["cause"] == "file-descriptor-limit-low"
    assert "64 files" in examined.first["because"]


def test_usual_number_of_open_files_is_sound(doctor: Doctor) -> None:
    examined = doctor(within=("prlimit", "--nofile=1024:20000", "--"))
    assert "file-descriptor-limit-low" not in examined.causes


@pytest.mark.ward
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_one_core_for_two_ranks(doctor: Doctor) -> None:
    core = min(os.sched_getaffinity(0))
    examined = doctor("--probe", "matmul", within=("taskset", "-c", str(core)))
    assert examined.exit_code == 1
    assert examined.first["cause"] == "cpu-affinity-wrong"
    assert "2 ranks" in examined.first["because"]
    assert "taskset -cp" in examined.first["fixes"][0]["paste"]


def test_cpu_quota(doctor: Doctor, part_of_a_cpu: Path) -> None:
    join = ("sh", "-ec", f'echo $$ > {part_of_a_cpu}; exec "$@"', "sh")
    examined = doctor(within=join)
    assert examined.exit_code == 1
    assert examined.first["cause"] == "cpu-quota-throttled"
    assert "0.4 of" in examined.first["because"]
    assert str(part_of_a_cpu.parent) in examined.first["fixes"][0]["paste"]
