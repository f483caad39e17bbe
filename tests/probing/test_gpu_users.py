"""With the played driver: pynvml is the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddoctor.probing import gpu_users
from tests.driver import PlayedDriver, scenario

Occupied = Callable[..., str]


@pytest.fixture
def occupied(played_driver: PlayedDriver, tmp_path: Path) -> Occupied:
    script = "from ddoctor.probing import gpu_users; print(gpu_users.occupied())"

    def ask(name: str, *lines: str, **variables: str) -> str:
        played = played_driver.environment(scenario(name, tmp_path, *lines))
        clean = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_")}
        return subprocess.run(
            [sys.executable, "-c", script],
            env={**clean, **played, **variables},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    return ask


def test_idle_gpus_may_be_used(occupied: Occupied) -> None:
    assert occupied("healthy_8xh100") == ""


def test_a_process_on_a_gpu_is_named(occupied: Occupied) -> None:
    told = occupied("healthy_8xh100", "gpu.4.memory_used = 30723", "gpu.4.processes = 4711:30720")
    assert "GPU 4 is in use by process 4711" in told
    assert "--force" in told


def test_memory_in_use_without_a_process_is_one_that_cannot_be_seen(occupied: Occupied) -> None:
    assert "not visible from here" in occupied("foreign_process")


def test_gpus_that_are_not_visible_do_not_matter(occupied: Occupied) -> None:
    assert occupied("foreign_process", CUDA_VISIBLE_DEVICES="0,1,2,3") == ""
    assert occupied("foreign_process", CUDA_VISIBLE_DEVICES="3,4") != ""


def test_an_index_is_not_trusted_among_different_models(occupied: Occupied) -> None:
    """CUDA counts the fastest first, and so GPU 4 may be its device 0."""
    mixed = ("gpu.0.name = NVIDIA L4",)
    assert occupied("foreign_process", *mixed, CUDA_VISIBLE_DEVICES="0") != ""
    ordered = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert occupied("foreign_process", *mixed, **ordered) == ""


def test_nvml_that_fails_forbids_nothing(occupied: Occupied) -> None:
    assert occupied("nvml_mismatch") == ""


@pytest.mark.parametrize(
    ("chosen", "visible"),
    [
        (None, True),
        ("", False),
        ("4", True),
        ("0, 4", True),
        ("0,1", False),
        ("14", False),
        ("GPU-0a", True),
        ("GPU-0b", False),
        ("-1", False),
    ],
)
def test_what_cuda_visible_devices_lets_see(chosen: str | None, visible: bool) -> None:
    assert gpu_users.visible(chosen, 4, "GPU-0a1b2c3d-0000") is visible
