"""Rank 0 that is stopped: the other ranks say so within 30 s, and not while it works."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from contextlib import suppress

import psutil
import pytest

from ddoctor.cluster import store, supervisor
from ddoctor.cluster.store import HEARTBEAT, ClusterStore, MemoryStore
from ddoctor.cluster.supervisor import CoordinatorHeartbeat, CoordinatorLost
from ddoctor.proc import processes
from tests.cluster.conftest import MARK, TORCHRUN
from tests.conftest import STEERING

# Silence, and the end of the launcher's patience with the stopped rank.
TOLD_SECONDS = 30


def found(mark: str, rank: int, module: str) -> list[psutil.Process]:
    """The process of a rank that runs this module, once it is there."""
    rows = []
    for one in processes.carrying(**{MARK: mark, "RANK": str(rank)}):
        with suppress(psutil.Error):
            if module in one.cmdline():
                rows.append(one)
    return rows


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(supervisor, "BEAT_SECONDS", 0.0)


@pytest.mark.usefixtures("quick")
def test_rank_0_shows_that_it_runs_while_it_works() -> None:
    shared = ClusterStore(MemoryStore(), "")
    with shared.beating():
        time.sleep(0.5)
    beats = shared.add(HEARTBEAT, 0)
    assert beats >= 2
    time.sleep(0.5)
    assert shared.add(HEARTBEAT, 0) <= beats + 1


@pytest.mark.usefixtures("quick")
def test_rank_0_may_come_late_but_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "SILENT_SECONDS", 0.1)
    shared = ClusterStore(MemoryStore(), "")
    coordinator = CoordinatorHeartbeat(shared, join_limit=1000.0)
    time.sleep(0.2)
    coordinator.check()
    shared.add(HEARTBEAT)
    time.sleep(0.2)
    coordinator.check()
    time.sleep(0.2)
    with pytest.raises(CoordinatorLost, match="rank 0, which writes the report"):
        coordinator.check()


@pytest.mark.usefixtures("quick")
def test_a_rank_that_ends_does_not_wait_for_a_rank_0_that_never_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "ENDING_SILENT_SECONDS", 0.1)
    monkeypatch.setattr(supervisor, "ENDING_TICKS", 1)
    coordinator = CoordinatorHeartbeat(ClusterStore(MemoryStore(), ""), join_limit=1000.0)
    coordinator.ending = True
    time.sleep(0.2)
    with pytest.raises(CoordinatorLost, match="rank 0, which writes the report"):
        coordinator.check()


@pytest.mark.ward
def test_a_stopped_rank_0_is_told() -> None:
    mark = uuid.uuid4().hex
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(STEERING)}
    command = (*TORCHRUN, "--standalone", "--nproc-per-node=2", "-m", "ddoctor.probe")
    with subprocess.Popen(
        command, env={**inherited, MARK: mark}, stderr=subprocess.PIPE, text=True
    ) as launcher:
        try:
            while not found(mark, 1, "ddoctor.probing.worker"):
                time.sleep(0.1)
            (first,) = found(mark, 0, "ddoctor.probe")
            first.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            assert launcher.stderr is not None
            for line in launcher.stderr:
                if "rank 0, which writes the report, has not answered" in line:
                    break
            seconds = time.monotonic() - began
        finally:
            processes.end(0.0, **{MARK: mark})
    assert seconds < TOLD_SECONDS
