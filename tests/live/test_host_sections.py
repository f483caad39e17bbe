"""What the host itself tells beside a look at its ranks."""

from __future__ import annotations

import os

import psutil
import pytest

from ddoctor.evidence.gpus import KernelLog
from ddoctor.live.attach import host_sections
from ddoctor.live.rank_processes import RankProcess


@pytest.mark.skipif(
    os.getuid() != 0 or not os.access("/dev/kmsg", os.R_OK), reason="root may read /dev/kmsg"
)
def test_the_log_since_the_start_of_the_run() -> None:
    rank_process = RankProcess(process=psutil.Process(), rank=0, world=1, command=("train.py",))
    (log,) = (one for one in host_sections([rank_process]) if isinstance(one, KernelLog))
    # Nothing of the kind has happened since this test began.
    assert (log.source, log.xids, log.oom_kills) == ("/dev/kmsg", (), ())
    assert log.host
