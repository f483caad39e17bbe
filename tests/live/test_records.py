"""Which of a rank's records are read, and when it is asked for new ones."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import psutil
import pytest

from ddoctor.evidence.flight_records import RankRecords
from ddoctor.evidence.live import LiveLook
from ddoctor.live import records
from ddoctor.live.rank_processes import RankProcess
from tests.flight_records import unseen
from tests.live.test_dumps import ENTRY
from tests.live_look import in_collective, look, moving

HUNG, MOVING = look(in_collective(0, "all_reduce", 20)), look(moving(0))
AN_HOUR = 3600.0


@pytest.fixture
def rank_process(tmp_path: Path) -> RankProcess:
    """Itself, with a pipe that it listens at, and a file."""
    os.mkfifo(tmp_path / "pipe0.pipe")
    entry = ENTRY | {"time_created_ns": int((time.time() - AN_HOUR) * 1e9)}
    (tmp_path / "dump0").write_bytes(pickle.dumps({"entries": [entry]}, protocol=2))
    return RankProcess(
        process=psutil.Process(),
        rank=0,
        world=1,
        command=("train.py",),
        environment={records.PIPE: f"{tmp_path}/pipe", records.FILES[0]: f"{tmp_path}/dump"},
    )


def written(tmp_path: Path, ago: float) -> None:
    os.utime(tmp_path / "dump0", (time.time() - ago,) * 2)


def seen(
    rank_process: RankProcess, live: LiveLook, tmp_path: Path
) -> tuple[tuple[RankRecords, ...], bool]:
    """What was read, and whether it was asked for anything."""
    reader = os.open(tmp_path / "pipe0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        ranks = tuple(
            one for section in records.records([rank_process], live) for one in section.ranks
        )
        try:
            return ranks, bool(os.read(reader, 10))
        except BlockingIOError:
            return ranks, False
    finally:
        os.close(reader)


def test_a_file_of_its_own(rank_process: RankProcess, tmp_path: Path) -> None:
    (one,), asked = seen(rank_process, MOVING, tmp_path)
    assert (one.told_by, one.pid) == ("dump file", os.getpid())
    assert one.age_seconds < AN_HOUR / 60
    assert one.idle_seconds == pytest.approx(AN_HOUR, rel=0.01)
    assert not asked


def test_a_file_from_before_its_start(rank_process: RankProcess, tmp_path: Path) -> None:
    written(tmp_path, time.time() - rank_process.process.create_time() + 60)
    assert seen(rank_process, MOVING, tmp_path) == ((), False)


@pytest.mark.parametrize(
    ("live", "ago", "asks"),
    [
        (HUNG, AN_HOUR, True),
        (unseen(HUNG), AN_HOUR, True),
        (MOVING, AN_HOUR, False),
        # However often one looks.
        (HUNG, 10.0, False),
    ],
)
def test_when_it_is_asked(
    rank_process: RankProcess, tmp_path: Path, live: LiveLook, ago: float, asks: bool
) -> None:
    written(tmp_path, ago)
    _, asked = seen(rank_process, live, tmp_path)
    assert asked is asks


def test_nothing_is_offered(rank_process: RankProcess, tmp_path: Path) -> None:
    (tmp_path / "dump0").unlink()
    assert list(records.records([rank_process], MOVING)) == []
