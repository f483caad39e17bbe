"""A training that runs while it is looked at."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

START_SECONDS = 240.0


@contextmanager
def training(
    ranks: int, script: Sequence[str], folder: Path, has_begun: Callable[[], bool]
) -> Iterator[psutil.Popen]:
    """The launcher of so many ranks that have begun to train; they are ended afterwards."""
    launcher = psutil.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={ranks}", *script),
        ],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not has_begun():
            if time.monotonic() > deadline or not launcher.is_running():
                raise SystemExit("the training did not begin")
            time.sleep(0.2)
        yield launcher
    finally:
        for one in [*launcher.children(recursive=True), launcher]:
            one.kill()
        launcher.wait()
