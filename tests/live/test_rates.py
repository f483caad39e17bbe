"""The disks and networks of this machine, as something is moved."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ddoctor.live.rates import DISKS, Rates

WRITTEN = 8 * 2**20


def test_what_is_written_is_counted_at_a_disk(tmp_path: Path) -> None:
    rates = Rates()
    with (tmp_path / "data").open("wb") as file:
        for _ in range(8):
            file.write(os.urandom(WRITTEN // 8))
            file.flush()
            os.fsync(file.fileno())
    time.sleep(1.0)  # so that seconds, which are rounded, are exact enough
    told = rates.summary()
    if not told.disks:
        pytest.skip("the file system of this folder is on no disk of this machine's")
    assert sum(one.written for one in told.disks) * told.seconds >= 0.9 * WRITTEN / 2**20
    assert all(0 < one.busy <= 1 and (DISKS / one.name).exists() for one in told.disks)
    assert "lo" not in [one.name for one in told.interfaces]
    assert told.load >= 0
