"""Where the time of a live run goes."""

from __future__ import annotations

import pytest

from ddoctor.analysis import live_time
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.live import LiveLook
from tests.analysis.test_live_loop import at, rank
from tests.live_look import WAITING, in_reduction, look, moving
from tests.training_run import user

PREPARES = at(15, "ids = tokenise(texts)")


def spent(seen: LiveLook) -> list[tuple[str, int, list[int]]]:
    rows = live_time.spent(LiveState.derive((seen,)))
    return [
        (row.phase, row.line.line if row.line else 0, [one.rank for one in row.ranks])
        for row in rows
    ]


def test_of_all_ranks() -> None:
    ranks = (rank(0, (42, PREPARES)), rank(1, (42, PREPARES)))
    assert spent(look(*ranks)) == [
        ("rest", 15, [0, 1]),
        ("backward", 0, [0, 1]),
        ("forward", 0, [0, 1]),
    ]


def test_all_lines_of_a_function_count_for_the_line_that_calls_it() -> None:
    inner = [user(line, "row.append(word)", "tokenise") for line in range(1, 7)]
    work = [(7, (*PREPARES, one)) for one in inner]
    assert ("rest", 15, [0]) in spent(look(rank(0, *work)))


def test_of_one_rank_only() -> None:
    ranks = (rank(0, (42, PREPARES)), rank(1, (42, at(16, "ids = cached(texts)"))))
    assert ("rest", 15, [0]) in spent(look(*ranks))
    assert ("rest", 16, [1]) in spent(look(*ranks))


def test_of_the_rank_for_which_the_others_wait() -> None:
    late = {"rest": 60, "forward": 15, "backward-or-wait": 20, "optimizer": 5}
    rows = spent(look(moving(0, late), moving(1, WAITING, asleep=0.8)))
    assert rows[0][0] == "rest"
    assert {tuple(ranks) for _, _, ranks in rows} == {(0,)}


@pytest.mark.parametrize(
    "seen", [look(in_reduction(0), in_reduction(1)), look(moving(0, {"forward": 5}))]
)
def test_nothing_of_a_run_that_stands_or_was_hardly_sampled(seen: LiveLook) -> None:
    assert spent(seen) == []
