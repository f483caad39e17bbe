from __future__ import annotations

import msgspec
import pytest

from ddoctor.evidence.live import Activity
from ddoctor.evidence.section import Evidence
from ddoctor.report.live import flame
from tests.live_look import look, moving
from tests.training_run import user

MAIN, EXTRA, STEP = user(50, "train()"), user(20, "draw(image)", "work"), user(30, "model(x)", "f")


def test_stacks_are_merged_by_their_lines() -> None:
    training = Activity(name="forward", samples=60, calls=(MAIN, STEP))
    waiting = Activity(name="backward-or-wait", samples=40, calls=(MAIN,))
    drawing = Activity(name="rest", samples=40, calls=(MAIN, EXTRA))
    first, second = (
        msgspec.structs.replace(moving(number), samples=100, activities=(training, other))
        for number, other in ((0, drawing), (1, waiting))
    )
    whole = flame(Evidence([look(first, second)]))
    (main,) = whole.inside
    assert (main.name, main.text, main.phase) == ("train.py:50 in main", "train()", "")
    assert main.share == pytest.approx(1.0)
    assert main.seen_on == whole.seen_on == {0, 1}
    found = {(box.name, *box.seen_on, round(box.share, 3)) for box in main.inside}
    assert found == {
        ("train.py:30 in f", 0, 1, 0.6),
        ("train.py:20 in work", 0, 0.2),
        ("backward-or-wait", 1, 0.2),
    }
    (leaf,) = main.inside[0].inside
    assert (leaf.name, leaf.phase, leaf.inside) == ("forward", "forward", ())


def test_what_is_hardly_there_is_left_out() -> None:
    seldom = (Activity(name="forward", samples=999), Activity(name="rest", samples=1))
    rank = msgspec.structs.replace(moving(0), samples=1000, activities=seldom)
    assert [box.name for box in flame(Evidence([look(rank)])).inside] == ["forward"]


def test_nothing_where_nobody_looked() -> None:
    assert flame(Evidence([])).inside == ()
