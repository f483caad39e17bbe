"""Each scenario of the played driver, told by the whole command line.

Everything is real but the driver, the build of torch and, where a scenario has one, the kernel log:
pynvml, the collectors, the checks, the report and the exit code.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import Doctor, Examined
from tests.driver import KERNEL_LOGS, LIBRARY_VERSION, SCENARIOS, PlayedDriver, scenario

LOADED_MODULE = "550.54.14"

MODULE_VERSION = (
    f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {LOADED_MODULE}  Thu Feb 22 01:44:30 UTC 2024"
)

ADOPT = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
libc.prctl(36, 1, 0, 0, 0)          # PR_SET_CHILD_SUBREAPER: orphans come to this process
libc.prctl(15, b"systemd", 0, 0, 0)  # PR_SET_NAME: as the user's own systemd does
pipe, answer = os.pipe()
if os.fork() == 0:
    orphan = os.fork()
    if orphan == 0:
        time.sleep(600)
    os.write(answer, str(orphan).encode())
    os._exit(0)
orphan = int(os.read(pipe, 32))
os.wait()
print(orphan, flush=True)
sys.stdin.read()
os.kill(orphan, 9)
"""

Play = Callable[..., Examined]


def namespaces() -> bool:
    """Whether this machine lets a test have mounts of its own."""
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True)
    return tried.returncode == 0


own_mounts = pytest.mark.skipif(not namespaces(), reason="mount namespaces cannot be made here")


@pytest.fixture
def play(doctor: Doctor, played_driver: PlayedDriver, tmp_path: Path) -> Play:
    """Run ``ddoctor doctor`` in a scenario, with these lines added to it."""

    def run(name: str, *lines: str, within: Sequence[str] = ()) -> Examined:
        file = scenario(name, tmp_path, *lines)
        environment = played_driver.environment(file)
        return doctor("--no-probes", environment=environment, within=within)

    return run


SICK = {
    "hot_gpu": ("gpu-thermal-throttling", ["cuda:3"], "1125 of 1980 MHz at 90 °C"),
    "ecc_uncorrected": ("gpu-hardware-fault", ["cuda:5"], "2 uncorrected memory errors"),
    "fallen_off_the_bus": ("gpu-hardware-fault", ["cuda:2"], "GPU_IS_LOST"),
    "pcie_x4": ("pcie-link-degraded", ["cuda:6"], "4 lanes"),
    "nvlinks_down": ("nvlink-degraded", ["cuda:1"], "down: 6, 7"),
    "fabric_not_started": ("nvswitch-fabric-fault", None, "8 of 8 GPUs is not started"),
    "power_cap": ("gpu-power-capped", ["cuda:7"], "400 W"),
    "old_driver": ("cuda-driver-or-arch-mismatch", [], "470.57.02"),
    "nvml_mismatch": ("nvml-init-failure", [], "LIB_RM_VERSION_MISMATCH"),
    "mig_on": ("gpu-mig-enabled", ["cuda:0"], "1 of 8 GPUs"),
}

SOUND = (
    "healthy_8xh100",
    "busy_8xh100",
    "idle_power_saving",
    "two_4090",
    "a100_8x",
    "old_ecc_counts",
)

WITH_A_PROCESS = ("foreign_process", "orphan", "own_process")


@pytest.mark.parametrize("name", SICK)
def test_a_sick_machine_is_told_its_cause_first(play: Play, name: str) -> None:
    cause, devices, words = SICK[name]
    examined = play(name)
    assert examined.exit_code == 1
    assert examined.first["cause"] == cause
    assert words in examined.first["because"]
    if devices is not None:
        assert examined.first["where"]["devices"] == devices
    assert examined.first["fixes"]
    assert examined.report["crashed"] == []


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_machine_is_healthy(play: Play, name: str) -> None:
    examined = play(name)
    assert examined.exit_code == 0, examined.report["findings"]
    assert examined.report["verdict"] == "healthy"
    about_gpus = [cause for cause in examined.causes if cause.startswith(("gpu", "nv", "pcie"))]
    assert about_gpus == []


def test_every_scenario_is_played() -> None:
    assert {file.stem for file in SCENARIOS.glob("*.txt")} == {*SICK, *SOUND, *WITH_A_PROCESS}


@own_mounts
def test_xid_79_in_the_kernel_log_is_told_with_the_lost_gpu(play: Play) -> None:
    log = KERNEL_LOGS / "xid_79.txt"
    examined = play("fallen_off_the_bus", within=_mounted(f"mount --bind {log} /dev/kmsg"))
    assert examined.exit_code == 1
    assert examined.first["cause"] == "gpu-hardware-fault"
    assert "GPU_IS_LOST" in examined.first["because"]
    assert "Xid 79" in examined.first["because"]
    assert examined.first["confidence"] == "certain"


@own_mounts
def test_xid_79_alone_is_likely(play: Play) -> None:
    log = KERNEL_LOGS / "xid_79.txt"
    examined = play("healthy_8xh100", within=_mounted(f"mount --bind {log} /dev/kmsg"))
    assert examined.exit_code == 1
    assert examined.first["cause"] == "gpu-hardware-fault"
    assert examined.first["where"]["devices"] == ["cuda:2"]
    assert examined.first["confidence"] == "likely"


@own_mounts
def test_a_mismatch_names_the_versions_of_library_and_module(play: Play, tmp_path: Path) -> None:
    version = tmp_path / "version"
    version.write_text(f"{MODULE_VERSION}\n")
    proc = "/proc/driver"
    examined = play(
        "nvml_mismatch",
        within=_mounted(
            f"mount -t tmpfs none {proc}",
            f"mkdir {proc}/nvidia",
            f"cp {version} {proc}/nvidia/version",
        ),
    )
    assert examined.first["cause"] == "nvml-init-failure"
    assert LIBRARY_VERSION in examined.first["because"]
    assert LOADED_MODULE in examined.first["because"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_somebody_else_s_process_with_30_gib(play: Play) -> None:
    with subprocess.Popen(["sleep", "600"], user="nobody") as theirs:
        try:
            examined = play("foreign_process", f"gpu.4.processes = {theirs.pid}:30720")
        finally:
            theirs.kill()
    assert examined.exit_code == 1
    assert examined.first["cause"] == "uneven-gpu-memory"
    assert examined.first["where"]["devices"] == ["cuda:4"]
    assert f"process {theirs.pid} (sleep) of nobody holds 30.0 GiB" in examined.first["because"]
    assert not any("kill" in fix["paste"] for fix in examined.first["fixes"])


@pytest.fixture
def orphan() -> Iterator[int]:
    """A sleeping process of this user whose parent is gone, and which a reaper has adopted."""
    with subprocess.Popen(
        [sys.executable, "-c", ADOPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reaper:
        assert reaper.stdout is not None
        yield int(reaper.stdout.readline())
        assert reaper.stdin is not None
        reaper.stdin.close()


def test_an_idle_orphan(play: Play, orphan: int) -> None:
    examined = play("orphan", f"gpu.0.processes = {orphan}:40960")
    assert examined.exit_code == 1
    assert examined.first["cause"] == "leftover-process-holds-gpu"
    assert examined.first["where"]["devices"] == ["cuda:0"]
    assert f"kill {orphan}" in examined.first["fixes"][0]["paste"]
    assert "uneven-gpu-memory" in examined.first["consequences"]


def test_the_users_own_run_is_no_fault(play: Play) -> None:
    with subprocess.Popen(["sleep", "600"]) as own:
        try:
            examined = play("own_process", f"gpu.*.processes = {own.pid}:61440")
        finally:
            own.kill()
    assert examined.exit_code == 0, examined.report["findings"]
    assert examined.report["verdict"] == "healthy"


def _mounted(*commands: str) -> Sequence[str]:
    """A command that executes its arguments after these, with mounts that nobody else sees."""
    script = " && ".join((*commands, 'exec "$@"'))
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh")
