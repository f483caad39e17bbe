from __future__ import annotations

import msgspec
import pytest

from ddoctor import engine
from ddoctor.analysis import live_cost
from ddoctor.analysis.live_state import LiveState, unjudged
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import Activity, LiveLook, LiveRank
from ddoctor.evidence.section import Evidence
from ddoctor.models import Verdict
from tests.live_look import TRAINING, in_collective, in_reduction, look, moving, on_gpu
from tests.live_look import standing as stands
from tests.training_run import library, user


def test_the_phases_of_a_step_add_up() -> None:
    seen = look(moving(0, {**TRAINING, "collective": 10, "import": 5}, asleep=0.2))
    (one,) = LiveState.derive((seen,)).ranks
    assert sum(one.shares.values()) == pytest.approx(1.0)
    # It sleeps in the collective as well.
    assert one.shares["backward"] == pytest.approx(45 / 115 - (0.2 - 10 / 115))
    assert one.shares["waiting"] == pytest.approx(0.2)
    assert one.shares["rest"] == pytest.approx(15 / 115)


SENDING = {"backward-or-wait": 85, "forward": 10, "optimizer": 5}
HALF = msgspec.structs.replace(look(in_reduction(0), in_reduction(1)), world=4)
UNSEEN = msgspec.structs.replace(
    moving(1), samples=0, activities=(), stack=(), unseen="ptrace is forbidden"
)


@pytest.mark.parametrize(
    ("live", "why"),
    [
        (
            msgspec.structs.replace(look(moving(0, SENDING, asleep=0.8)), world=2),
            "all ranks here wait for other ranks for at least 80% of the time, and 1 rank on other",
        ),
        (HALF, "ranks 0-1 wait in backward at train.py:40 in train, and 2 ranks on other hosts"),
        (look(in_reduction(0), in_reduction(1)), "no rank is elsewhere"),
        (
            look(*(stands(rank, "rest", user(30, "input()")) for rank in range(2))),
            "the run is stuck: ranks 0-1 are at train.py:30",
        ),
        (
            look(moving(0), moving(1, {"forward": 6, "backward-or-wait": 9})),
            "rank 1 has only 15 samples in 10 s, and 20 are needed to judge the progress "
            "of a run: sample for longer with --seconds 27",
        ),
        (
            look(in_reduction(0), msgspec.structs.replace(stands(1, "forward"), state="zombie")),
            "rank 1 ended during the samples",
        ),
        (
            look(moving(0), msgspec.structs.replace(moving(1), state="gone")),
            "rank 1 ended during the samples: attach again",
        ),
        (look(moving(0), UNSEEN), "the stack of rank 1 was not seen: ptrace is forbidden"),
    ],
)
def test_what_cannot_be_judged_is_not_called_healthy(live: LiveLook, why: str) -> None:
    report = engine.examine(Evidence([live]), "attach")
    assert report.verdict is Verdict.INCOMPLETE
    assert why in report.crashed[0].error


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        msgspec.structs.replace(look(moving(0), moving(1)), world=4),
        look(moving(0), in_collective(1, "barrier", 12)),
        look(in_reduction(0), in_reduction(1), seconds=2.0),
        look(in_reduction(0), msgspec.structs.replace(UNSEEN, state="stopped")),
    ],
)
def test_what_can(live: LiveLook) -> None:
    assert unjudged(LiveState.derive((live,))) == ""


@pytest.mark.parametrize(
    ("one", "stands_still"),
    [
        (stands(1, "checkpoint", user(30)), True),
        (msgspec.structs.replace(stands(1, "checkpoint", user(30)), moved=0.02), True),
        # It writes; it computes; it is met at two places.
        (msgspec.structs.replace(stands(1, "checkpoint", user(30)), moved=80.0), False),
        (stands(1, "rest", user(30), main_cpu=9.0), False),
        (moving(1), False),
    ],
)
def test_what_gets_on_does_not_stand_still(one: LiveRank, stands_still: bool) -> None:
    assert LiveState.derive((look(in_reduction(0), one),)).hung is stands_still


def test_where_a_finding_tells_nothing_is_left_to_be_judged() -> None:
    live = look(in_reduction(0), stands(1, "rest", user(30, "wait_for_file(path)", "load")))
    assert engine.examine(Evidence([live]), "attach").verdict is Verdict.FINDINGS


def test_the_way_that_only_the_late_rank_comes() -> None:
    """All are met most at one line, and one of them comes there on another way, too."""
    usual, extra, sort = user(50, "busy(0.01)"), user(20, "busy(0.04)", "work"), user(9, "x.sort()")

    def rank(number: int, *ways: tuple[tuple[Frame, ...], int], waits: int) -> LiveRank:
        met = [Activity(name="rest", samples=n, visits=20, calls=calls) for calls, n in ways]
        waiting = Activity(name="collective", samples=waits, visits=20)
        one = moving(number)
        return msgspec.structs.replace(one, samples=100, activities=(*met, waiting))

    often, seldom = ((usual, sort), 50), ((usual, extra, sort), 45)
    found = LiveState.derive(
        (look(rank(0, often, seldom, waits=5), rank(1, often, waits=50)),)
    ).straggler
    assert found is not None
    assert found.calls == (usual, extra, sort)
    assert found.line == extra
    # Nor where they hardly do.
    hardly = ((usual, sort), 12)
    found = LiveState.derive(
        (look(rank(0, hardly, seldom, waits=5), rank(1, hardly, waits=88)),)
    ).straggler
    assert found is not None
    assert found.line == extra
    # Where the others come to all lines, it is the last.
    more = LiveState.derive((look(rank(0, often, waits=5), rank(1, often, waits=50)),)).straggler
    assert more is not None
    assert more.line == sort


def test_gpus_that_all_wait_are_not_called_healthy() -> None:
    """Their hosts spin, and yet nothing moves; at which lines they do says nothing of why."""
    live = look(on_gpu(0, 44, "total += loss.item()"), on_gpu(1, 48, "losses.append(float(loss))"))
    assert LiveState.derive((live,)).hung
    report = engine.examine(Evidence([live]), "attach")
    assert report.verdict is Verdict.INCOMPLETE
    (told,) = report.crashed
    assert "rank 0 waits at train.py:44" in told.error


@pytest.mark.parametrize(
    "one",
    [
        stands(1, "rest", user(44, "total += loss.item()"), main_cpu=9.5),
        msgspec.structs.replace(
            stands(1, "rest", user(44, "draw(losses)"), main_cpu=9.5), on_gpu=True
        ),
        on_gpu(1, 44, "total += loss.item()", library("numpy/core/numeric.py", 3, "dot")),
    ],
    ids=["no GPU", "another line", "within another library"],
)
def test_what_computes_does_not_wait_for_a_gpu(one: LiveRank) -> None:
    live = look(in_reduction(0), one)
    assert not LiveState.derive((live,)).hung


def waits(share: int, of: int = 200) -> dict[str, int]:
    """So many percent of the samples in a collective."""
    waiting = share * of // 100
    return {"forward": of // 2, "collective": waiting, "backward": of // 2 - waiting}


def late(*met: dict[str, int]) -> str:
    """Which rank is late, and how loudly that is told."""
    live = look(*(moving(rank, one, asleep=0.0) for rank, one in enumerate(met)))
    found = LiveState.derive((live,)).straggler
    return f"{found.rank.rank} {live_cost.severity(found.lost).value}" if found else ""


def test_from_which_delay_on_a_rank_is_late() -> None:
    assert late(waits(35), waits(5)) == "1 warning"
    assert late(waits(17), waits(3)) == "1 note"
    assert late(waits(10), waits(3)) == ""


def test_few_samples_differ_by_chance() -> None:
    assert late(waits(17, of=40), waits(3, of=40)) == ""
    assert late(waits(45, of=40), waits(5, of=40)) == "1 warning"


def test_what_all_ranks_do_explains_more_than_a_slight_delay() -> None:
    loads = {"loader": 60}
    assert late(waits(17) | loads, waits(3) | loads) == ""
    assert late(waits(45) | loads, waits(5) | loads) == "1 warning"


LOADS = {"loader": 30, "forward": 22, "backward-or-wait": 48}
COMPUTES = {"loader": 2, "forward": 33, "backward-or-wait": 65}


def test_on_shared_cpus_the_others_compute_slower_and_do_not_wait() -> None:
    ranks = (moving(0, LOADS, asleep=0.25), moving(1, COMPUTES, asleep=0.27))
    found = LiveState.derive((look(*ranks),)).straggler
    assert found is not None
    assert (found.rank.rank, found.activity) == (0, "loader")
    assert found.lost < live_cost.SURE
    assert found.others_wait == "while rank 1 does not"


@pytest.mark.parametrize(
    "ranks",
    [
        # A GPU computes meanwhile.
        [
            msgspec.structs.replace(moving(0, LOADS, asleep=0.25), on_gpu=True),
            msgspec.structs.replace(moving(1, COMPUTES, asleep=0.27), on_gpu=True),
        ],
        # Both do it; seen once; no rank waits for any.
        [moving(0, LOADS, asleep=0.25), moving(1, LOADS, asleep=0.27)],
        [moving(0, LOADS, asleep=0.25, visits=1), moving(1, COMPUTES, asleep=0.27)],
        [moving(0, LOADS, asleep=0.0), moving(1, COMPUTES, asleep=0.0)],
    ],
)
def test_no_rank_is_late_beside_the_others(ranks: list[LiveRank]) -> None:
    assert LiveState.derive((look(*ranks),)).straggler is None
