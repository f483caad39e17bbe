"""Whether a lock is held is seen at the process that holds it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest
from torch.utils.file_baton import FileBaton

from ddoctor.live.build_locks import build_locks
from ddoctor.live.rank_processes import RankProcess


@contextmanager
def rank_process(folder: Path, environment: Mapping[str, str]) -> Iterator[RankProcess]:
    """A process that was started there with this in its environment."""
    process = psutil.Popen(
        [sys.executable, "-c", "input()"],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": "", "HOME": str(folder), **environment},
        stdin=PIPE,
    )
    try:
        # For a moment after a process was started, the kernel shows none of its environment.
        while "HOME" not in process.environ():
            time.sleep(0.01)
        yield RankProcess(
            process=process,
            rank=0,
            world=1,
            command=("train.py",),
            environment=process.environ(),
        )
    finally:
        process.communicate(b"\n")


@pytest.mark.parametrize(
    ("environment", "build"),
    [
        ({"TORCH_EXTENSIONS_DIR": "mine"}, "mine/scale"),
        ({"XDG_CACHE_HOME": "caches"}, "caches/torch_extensions/py311_cpu/scale"),
        ({}, ".cache/torch_extensions/py311_cpu/scale"),
    ],
    ids=["named", "caches", "home"],
)
def test_held_and_left(tmp_path: Path, environment: Mapping[str, str], build: str) -> None:
    path = tmp_path / build / "lock"
    path.parent.mkdir(parents=True)
    baton = FileBaton(str(path))
    with rank_process(tmp_path, environment) as one:
        assert build_locks([one]).locks == ()
        assert baton.try_acquire()
        (lock,) = build_locks([one, one]).locks
        assert (lock.path, lock.holder) == (str(path), os.getpid())
        assert lock.age_seconds < 3600
        os.close(vars(baton)["fd"])
        (lock,) = build_locks([one]).locks
        assert lock.holder is None


def test_a_rank_that_is_gone(tmp_path: Path) -> None:
    with rank_process(tmp_path, {}) as one:
        pass
    assert build_locks([one]).locks == ()
