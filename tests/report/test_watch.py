from __future__ import annotations

from ddoctor import engine
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.section import Evidence
from ddoctor.report.watch import LOOKS, History, screen
from tests.live_look import in_reduction, look, moving, standing
from tests.training_run import user

SOUND = look(moving(0), moving(1))
STUCK = look(in_reduction(0), standing(1, "rest", user(30, "wait_for_file(path)", "load")))


def shown(*looks: LiveLook, width: int = 80, height: int = 24) -> list[str]:
    history = History()
    for one in looks:
        history.add(Evidence([one]))
    evidence = Evidence([looks[-1]])
    lines = screen(engine.examine(evidence, "attach"), evidence, history, width, height)
    return [line.plain for line in lines]


def test_each_rank_has_its_row_with_what_it_did_before() -> None:
    lines = shown(SOUND, SOUND, STUCK)
    assert lines[0].startswith("train.py (port 29500)  ")
    assert lines[2].startswith("rank 0  ▕bbw▏ stuck in backward at train.py:40 in train")
    assert lines[3].startswith("rank 1  ▕bb!▏ stuck at train.py:30 in load")


def test_what_is_to_be_fixed() -> None:
    text = "\n".join(shown(STUCK))
    assert "error: A rank makes no progress" in text
    assert "fix: find what the innermost line waits for" in text
    assert any(line.startswith("healthy") for line in shown(SOUND))


def test_where_the_time_goes() -> None:
    (line,) = [line for line in shown(SOUND, width=200) if line.startswith("time: ")]
    assert line.startswith("time: 35% backward, 30% forward")
    assert not any(line.startswith("time: ") for line in shown(STUCK))


def test_no_more_than_fits() -> None:
    ranks = [standing(rank, "rest", user(30 + rank)) for rank in range(40)]
    for width, height in ((80, 24), (60, 16), (200, 50)):
        lines = shown(look(*ranks), width=width, height=height)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
    assert any("more rows" in line for line in shown(look(*ranks)))


def test_a_rank_that_came_late_and_one_that_left() -> None:
    history = History()
    for one in (look(moving(0)), SOUND, look(moving(1))):
        history.add(Evidence([one]))
    assert "".join(letter for letter, _ in history.of(0)) == "bb "
    assert "".join(letter for letter, _ in history.of(1)) == " bb"
    assert history.of(7) == ()


def test_only_the_last_looks_are_remembered() -> None:
    history = History()
    for _ in range(LOOKS + 5):
        history.add(Evidence([SOUND]))
    assert len(history.of(0)) == LOOKS
