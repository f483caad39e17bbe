from __future__ import annotations

from random import Random

import pytest

from ddoctor.analysis.stragglers import own_line, stragglers
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.steps import HotLine, Lines, RankLines, Steps
from tests.healthy.steps import SECTIONS
from tests.training_steps import COUNT, USUAL, every, lines, steps, with_more

FORWARD = ("forward", 20, "loss = model(batch)")
BACKWARD = ("backward", 21, "loss.backward()")


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(
    ("phase", "part"),
    [
        ("loader", "loading"),
        ("to-device", "loading"),
        ("forward", "computing"),
        ("backward", "computing"),
        ("optimizer", "computing"),
        ("rest", "rest"),
    ],
)
def test_the_late_rank_and_its_part(ranks: int, phase: str, part: str) -> None:
    others = [with_more(phase, 0.0)] * (ranks - 1)
    (found,) = stragglers(steps(*others, with_more(phase, 0.06), noise=0.05))
    assert found.place.rank == ranks - 1
    assert (found.part, found.phase) == (part, phase)
    assert found.seconds == pytest.approx(0.06, rel=0.15)
    assert found.cost == pytest.approx(0.06 / 0.165, rel=0.15)


def test_a_quiet_dose_under_noise() -> None:
    (found,) = stragglers(steps(USUAL, with_more("forward", 0.018), noise=0.08))
    assert found.place.rank == 1


def test_the_time_on_a_cpu_tells_through_more_noise() -> None:
    noisy = steps(USUAL, with_more("forward", 0.025), noise=0.35)
    assert stragglers(noisy) == ()
    cpu = steps(USUAL, with_more("forward", 0.025), noise=0.35, cpu=(0.09, 0.11))
    (found,) = stragglers(cpu)
    assert found.on_cpu is not None
    assert 0.02 <= found.on_cpu < 0.03


@pytest.mark.parametrize(("longer", "on_cpu"), [(0.06, 0.06), (0.0, 0.0)])
def test_what_of_the_rest_is_on_a_cpu(longer: float, on_cpu: float) -> None:
    (found,) = stragglers(steps(USUAL, with_more("rest", 0.06), cpu=(0.09, 0.09 + longer)))
    assert found.part == "rest"
    assert found.on_cpu == pytest.approx(on_cpu, abs=0.005)


def test_what_comes_every_so_many_steps_is_on_a_cpu_only_then() -> None:
    on_cpu = [0.09 + more for more in every(10, 0.6)]
    section = steps(USUAL, with_more("rest", every(10, 0.6)), cpu=(0.09, on_cpu))
    (found,) = stragglers(section)
    assert found.part == "rest"
    assert found.on_cpu == pytest.approx(0.06, abs=0.005)


def test_the_time_of_a_loader_is_not_told_as_time_on_a_cpu() -> None:
    (found,) = stragglers(steps(USUAL, with_more("loader", 0.06), cpu=(0.09, 0.15)))
    assert found.on_cpu is None


def test_two_late_ranks_of_four_for_two_reasons() -> None:
    found = stragglers(steps(USUAL, with_more("backward", 0.06), with_more("loader", 0.05), USUAL))
    assert [(one.place.rank, one.part) for one in found] == [(1, "computing"), (2, "loading")]


def test_two_ranks_that_are_late_by_turns_and_so_wait_for_nobody() -> None:
    section = steps(with_more("backward", 0.06), with_more("loader", 0.06))
    assert section.ranks[0].typical("waiting") == pytest.approx(0)
    found = stragglers(section)
    assert {(one.place.rank, one.part) for one in found} == {(0, "computing"), (1, "loading")}
    assert [one.cost for one in found] == pytest.approx([0.06 / 0.165] * 2)


def test_what_comes_every_so_many_steps_is_judged_by_its_mean() -> None:
    saves = with_more("checkpoint", every(10, 0.5))
    (found,) = stragglers(steps(saves, with_more("checkpoint", 0.0)))
    assert (found.place.rank, found.part, found.behind) == (0, "checkpoint", 3)
    assert found.seconds == pytest.approx(0.05)


def test_what_is_done_beside_saving_belongs_to_it() -> None:
    saves = with_more("rest", every(10, 0.4), with_more("checkpoint", every(10, 0.1)))
    (found,) = stragglers(steps(saves, with_more("checkpoint", 0.0)))
    assert (found.place.rank, found.part) == (0, "checkpoint")
    assert found.seconds == pytest.approx(0.05)


def test_a_smaller_share_where_it_is_asked_for() -> None:
    section = steps(USUAL, with_more("forward", 0.008))
    assert stragglers(section) == ()
    (found,) = stragglers(section, by=0.04)
    assert found.place.rank == 1


def _uneven(seed: int) -> Steps:
    random = Random(seed)
    ranks = [with_more("forward", [random.uniform(0, 0.1) for _ in range(COUNT)]) for _ in "ab"]
    return steps(*ranks)


@pytest.mark.parametrize("seed", range(8))
def test_quiet_where_the_late_rank_changes(seed: int) -> None:
    assert stragglers(_uneven(seed)) == ()


@pytest.mark.parametrize(
    "section",
    [
        steps(USUAL, USUAL, noise=0.2),
        steps(USUAL),
        # Too little, too seldom, too short, once only.
        steps(USUAL, with_more("forward", 0.008), noise=0.02),
        steps(USUAL, with_more("forward", [0.03, 0.0] * (COUNT // 2))),
        steps(USUAL, with_more("forward", 0.06), count=9),
        steps(USUAL, with_more("checkpoint", every(COUNT, 2.0))),
        # All ranks alike.
        steps(*[with_more("rest", 0.06)] * 4, noise=0.02),
        # They do not wait for each other, so nothing is lost.
        steps(USUAL, with_more("forward", 0.06), together=False),
        # Whatever it was, it went away.
        steps(USUAL, with_more("forward", [0.06] * 20 + [0.0] * 10)),
    ],
)
def test_quiet(section: Steps) -> None:
    assert stragglers(section) == ()


def test_quiet_on_a_sound_run() -> None:
    assert isinstance(SECTIONS[0], Steps)
    assert stragglers(SECTIONS[0]) == ()


def test_the_line_that_only_one_rank_is_met_at() -> None:
    sleeps = ("forward", 31, "time.sleep(0.06)")
    met = lines(
        {FORWARD: 30, BACKWARD: 70}, {FORWARD: 40, BACKWARD: 70, sleeps: 60}, {BACKWARD: 90}
    )
    line = own_line(met, 1, ("forward",), 0.35)
    assert line is not None
    assert line.line == 31


def test_a_line_after_the_call_is_not_the_line() -> None:
    call = Frame(file="train.py", line=40, function="<module>", text="remember()")
    after = HotLine(
        phase="rest", file="train.py", line=41, function="<module>", text="x = y", samples=20
    )
    # One line of the user's, in four functions of the library and in another line of its own.
    within = tuple(
        HotLine(
            phase="rest",
            file="train.py",
            line=line,
            function="remember",
            text="json.loads(line)",
            samples=12,
            inner=inner,
            calls=(call,),
        )
        for line, inner in ((15, ""), (16, ""), (16, "json:decode"), (15, "json:loads"), (16, "io"))
    )
    met = Lines(
        ranks=(
            RankLines(rank=0, samples=100, lines=()),
            RankLines(rank=1, samples=100, lines=(after, *within)),
        )
    )
    line = own_line(met, 1, ("rest",), 0.8)
    assert line is not None
    assert line.line == 16
    assert own_line(met, 1, ("forward",), 0.8) is None


@pytest.mark.parametrize(
    "mine",
    [
        # As often as the others, hardly ever, in another phase, less than it has to tell of.
        {FORWARD: 40, BACKWARD: 70},
        {FORWARD: 1},
        {BACKWARD: 70, ("rest", 40, "log()"): 60},
        {BACKWARD: 96, ("forward", 40, "log()"): 4},
    ],
)
def test_no_line_of_its_own(mine: dict[tuple[str, int, str], int]) -> None:
    met = lines({FORWARD: 30, BACKWARD: 70}, mine)
    assert own_line(met, 1, ("forward",), 0.35) is None


def test_no_line_where_none_were_seen() -> None:
    assert own_line(None, 1, ("forward",), 0.3) is None
    assert own_line(lines({FORWARD: 30}), 0, ("forward",), 0.3) is None
