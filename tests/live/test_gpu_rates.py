"""What GPUs move: real pynvml against the played driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from ddoctor.evidence.live import GpuRates
from tests.driver import PlayedDriver, scenario

READ = """
import msgspec, sys
from ddoctor.live.gpu_rates import gpu_rates
sys.stdout.buffer.write(msgspec.json.encode(gpu_rates()))
"""


def read(driver: PlayedDriver, file: Path) -> GpuRates:
    done = subprocess.run(
        [sys.executable, "-c", READ],
        env=os.environ | dict(driver.environment(file)),
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""
    return msgspec.json.decode(done.stdout, type=GpuRates)


def test_all_links_of_a_gpu_count(played_driver: PlayedDriver, tmp_path: Path) -> None:
    told = read(played_driver, scenario("busy_8xh100", tmp_path, "gpu.3.pcie_sent = 4096"))
    assert [one.index for one in told.gpus] == list(range(8))
    assert {one.pcie_received for one in told.gpus} == {1024.0}
    assert [one.pcie_sent for one in told.gpus if one.index in (2, 3)] == [2.0, 4.0]
    for one in told.gpus:
        assert one.nvlink_sent is not None
        assert one.nvlink_received is not None
        # 18 links of 512 MiB/s each: the clocks here and there are read one after the other.
        assert 0.5 < one.nvlink_sent / (18 * 512) < 2
        assert 0.5 < one.nvlink_received / (18 * 256) < 2


def test_what_a_gpu_does_not_tell_is_left_open(played_driver: PlayedDriver, tmp_path: Path) -> None:
    told = read(played_driver, scenario("two_4090", tmp_path))
    (one, _) = told.gpus
    assert (one.pcie_received, one.nvlink_sent, one.nvlink_received) == (None, None, None)


def test_a_lost_one_is_left_out(played_driver: PlayedDriver, tmp_path: Path) -> None:
    told = read(played_driver, scenario("busy_8xh100", tmp_path, "gpu.3.lost = 1"))
    assert 3 not in [one.index for one in told.gpus]
    assert len(told.gpus) == 7
