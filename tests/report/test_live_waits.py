from __future__ import annotations

import pytest

from ddoctor.evidence.live import LiveLook, LiveWorker
from ddoctor.evidence.section import Evidence
from ddoctor.report.live import time, waits
from tests.live_look import (
    READING,
    WAITING,
    in_collective,
    in_reduction,
    look,
    moving,
    standing,
)
from tests.training_run import library, user

STUCK = LiveWorker(pid=201, state="sleeping", cpu_seconds=0.0, stack=READING, still=True)
TAKES = library("torch/utils/data/dataloader.py", 1297, "_try_get_data")


def told(live: LiveLook) -> list[str]:
    rows = waits(Evidence([live])).rows
    return [f"{who} | {where} -> {whom} | {doing}" for who, where, whom, doing in rows]


@pytest.mark.parametrize(
    ("live", "rows"),
    [
        (
            look(in_reduction(0), standing(1, "rest", user(30, "input()")), in_reduction(2)),
            [
                "ranks 0, 2 | in backward at train.py:40 in train -> rank 1 | "
                "stuck at train.py:30 in main"
            ],
        ),
        (
            look(
                in_reduction(0), standing(1, "loader-wait", user(9), TAKES, workers=(STUCK, STUCK))
            ),
            [
                "rank 0 | in backward at train.py:40 in train -> rank 1 | "
                "stuck in loader at train.py:9 in main",
                *[
                    "rank 1 | in loader at train.py:9 in main -> its worker (pid 201) | "
                    "stuck at train.py:12 in Items.__getitem__"
                ]
                * 2,
            ],
        ),
        (
            look(in_collective(0, "barrier", 50), in_reduction(1), in_reduction(2)),
            [
                "rank 0 | in barrier at train.py:50 in train -> ranks 1-2 | "
                "waiting in backward at train.py:40 in train",
                "ranks 1-2 | in backward at train.py:40 in train -> rank 0 | "
                "waiting in barrier at train.py:50 in train",
            ],
        ),
        (
            look(in_collective(0, "barrier", 50), missing=(1,), supervised=False),
            ["rank 0 | in barrier at train.py:50 in train -> rank 1 | no longer running"],
        ),
        (
            look(moving(0, WAITING, asleep=0.7), moving(1, {"forward": 80, "backward": 20})),
            ["rank 0 | 70% of the time -> rank 1 | mostly in forward at train.py:40 in train"],
        ),
    ],
    ids=["stands", "worker", "apart", "gone", "late"],
)
def test_who_waits_for_whom(live: LiveLook, rows: list[str]) -> None:
    assert told(live) == rows


@pytest.mark.parametrize(
    "live",
    [look(moving(0), moving(1)), look(moving(0)), look(in_reduction(0), in_reduction(1))],
)
def test_nobody(live: LiveLook) -> None:
    assert waits(Evidence([live])).rows == ()


def test_nothing_was_seen() -> None:
    assert waits(Evidence([])).rows == ()


def test_where_the_time_of_a_run_goes() -> None:
    late = {"rest": 60, "forward": 15, "backward-or-wait": 20, "optimizer": 5}
    seen = look(moving(0, late), moving(1, WAITING, asleep=0.8))
    rows = time(Evidence([seen])).rows
    assert rows[0] == ("60%", "rest", "rank 0", "train.py:40 in train (`loss.backward()`)")
    every = time(Evidence([look(moving(0), moving(1))])).rows
    assert every[0] == ("35%", "backward", "all ranks", "")
    assert ("10%", "waiting for each other, or for the network", "all ranks", "") in every
    assert time(Evidence([])).rows == ()
