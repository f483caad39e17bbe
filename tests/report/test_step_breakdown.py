"""The figures of a step: they add up, and name the ranks that matter."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import PHASES, Lines, Steps
from ddoctor.report.scale import scaling
from ddoctor.report.step_breakdown import (
    LETTERS,
    StepBreakdown,
    binned,
    percent,
    step_breakdown,
    unit,
)
from tests.healthy import healthy
from tests.report import training_sample


def breakdown(evidence: Evidence) -> StepBreakdown:
    made = step_breakdown(evidence)
    assert made is not None
    return made


def test_a_run_on_one_host_is_shown_as_one_on_several() -> None:
    several = training_sample.late_rank()
    one = Evidence(replace(section, host="node-0") for section in several)
    assert breakdown(one).slices == breakdown(several).slices
    assert scaling(one) == scaling(several) is not None


@pytest.mark.parametrize(
    "evidence",
    [
        training_sample.late_rank(),
        training_sample.slow_loader(),
        training_sample.alone(),
        healthy(),
    ],
)
def test_the_phases_of_each_rank_and_of_all_add_up_to_the_step(evidence: Evidence) -> None:
    made = breakdown(evidence)
    for bar in made.bars:
        assert sum(one.seconds for one in bar.slices) == pytest.approx(bar.seconds)
        assert sum(one.share for one in bar.slices) == pytest.approx(1.0)
    assert sum(one.seconds for one in made.slices) == pytest.approx(made.steps.step)
    assert sum(one.share for one in made.slices) == pytest.approx(1.0)


def test_the_phases_come_in_the_order_in_which_they_are_drawn() -> None:
    phases = [one.phase for one in breakdown(training_sample.late_rank()).slices]
    assert phases == sorted(phases, key=PHASES.index)
    assert "evaluation" not in phases, "what takes no time has no place"


def test_the_ranks_come_in_the_order_of_their_numbers() -> None:
    steps = breakdown(training_sample.late_rank()).steps
    mixed = StepBreakdown(steps=replace(steps, ranks=steps.ranks[::-1]))
    assert [bar.rank for bar in mixed.bars] == list(range(8))


def test_work_of_its_own_is_all_but_waiting_and_transfer() -> None:
    late = breakdown(training_sample.late_rank()).bars[5]
    between = late.of("waiting") + late.of("transfer")
    assert late.own == pytest.approx(late.seconds - between)
    assert late.waiting == late.of("waiting")


def test_who_cannot_wait_was_not_seen_to_wait_for_nothing() -> None:
    (bar,) = breakdown(training_sample.alone()).bars
    assert bar.waiting is None
    assert "waiting" not in breakdown(training_sample.alone()).summary()


def test_a_rank_without_a_waiting_phase_among_others_that_have_one_waits_least() -> None:
    steps = breakdown(training_sample.late_rank(20)).steps
    late = steps.ranks[5]
    never = replace(late, phases=tuple(one for one in late.phases if one.name != "waiting"))
    made = StepBreakdown(steps=replace(steps, ranks=(*steps.ranks[:5], never, *steps.ranks[6:])))
    assert made.bars[5].waiting == 0
    assert {bar.rank: bar.words for bar in made.telling()}[5] == ("slowest", "waits least")


def test_every_phase_has_a_letter_of_its_own() -> None:
    assert len(set(LETTERS.values())) == len(PHASES)


def test_of_many_ranks_the_latest_and_the_median_are_told() -> None:
    made = breakdown(training_sample.late_rank(64))
    words = {bar.rank: bar.words for bar in made.telling()}
    assert words[5] == ("slowest", "waits least")
    assert sorted(words.values()) == [("median",), ("slowest", "waits least")]
    assert made.shown(64) == made.bars
    assert made.shown(63) == made.telling()


def test_beside_the_latest_only_those_a_tenth_of_the_step_behind_are_late() -> None:
    late = {(rank, "forward"): more for rank, more in ((1, 0.05), (2, 0.04), (3, 0.004))}
    made = breakdown(Evidence([training_sample.steps(32, training_sample.GPU, late)]))
    words = {bar.rank: bar.words for bar in made.telling(8)}
    assert words[1][0] == "slowest"
    assert words[2] == ("slow",)
    assert 3 not in words
    assert len(words) == 3


def test_who_waits_least_need_not_be_the_latest() -> None:
    made = breakdown(Evidence([training_sample.steps(20, training_sample.GPU, {})]))
    steps = made.steps
    idle = replace(
        steps.ranks[7],
        phases=tuple(
            replace(phase, seconds=tuple(0.0 for _ in phase.seconds))
            if phase.name in ("waiting", "backward")
            else phase
            for phase in steps.ranks[7].phases
        ),
    )
    ranks = (*steps.ranks[:7], idle, *steps.ranks[8:])
    words = {
        bar.rank: bar.words for bar in StepBreakdown(steps=replace(steps, ranks=ranks)).telling()
    }
    assert words[7] == ("waits least",)
    assert len(words) == 3


def test_the_lines_are_those_of_the_rank_that_takes_longest() -> None:
    made = breakdown(training_sample.late_rank())
    assert [str(met) for met in made.sampled_at("backward")] == [
        "rank 5: train.py:117 return slow_penalty(grad)",
        "rank 5: train.py:42 loss.backward()",
    ]
    assert str(made.sampled_at("forward")[0]).startswith("train.py:41 "), (
        "all ranks are alike there"
    )
    assert made.sampled_at("transfer") == ()
    assert breakdown(training_sample.failed()).sampled_at("forward") == ()


def test_a_line_is_told_once_however_many_places_it_had_called_into() -> None:
    made = breakdown(training_sample.late_rank())
    twice = training_sample.lines(
        8,
        (5, training_sample.hot("backward", 42, "loss.backward()", samples=30)),
        (5, training_sample.hot("backward", 117, "return slow_penalty(grad)", samples=25)),
    )
    met = StepBreakdown(steps=made.steps, lines=twice).sampled_at("backward")
    assert [one.place for one in met] == ["train.py:42", "train.py:117"]


def test_the_spread_leaves_the_odd_steps_aside() -> None:
    made = breakdown(training_sample.late_rank())
    least, most = made.spread
    assert min(made.steps.seconds) < least < most < max(made.steps.seconds)
    few = breakdown(training_sample.failed())
    assert few.spread == (min(few.steps.seconds), max(few.steps.seconds))


def test_samples_are_those_of_all_ranks_together() -> None:
    made = breakdown(training_sample.late_rank())
    assert made.samples == pytest.approx(8 * 32 / made.steps.step)
    steps = made.steps
    unseen = replace(steps, ranks=(replace(steps.ranks[0], samples=()), *steps.ranks[1:]))
    assert breakdown(Evidence([unseen])).samples is None


def test_nothing_is_told_of_a_run_without_a_judged_step() -> None:
    steps = breakdown(training_sample.alone()).steps
    (rank,) = steps.ranks
    none = replace(rank, phases=tuple(replace(one, seconds=()) for one in rank.phases))
    for empty in (
        Evidence(),
        Evidence([Steps(ranks=(), warm_up=0)]),
        Evidence([replace(steps, ranks=(none,)), Lines(ranks=())]),
    ):
        assert step_breakdown(empty) is None


def test_times_are_told_in_one_unit() -> None:
    assert unit(0.0841)(0.0841) == "84.1 ms"
    assert unit(0.0841)(0.00002) == "<0.1 ms"
    assert unit(0.0841)(0.0) == "0.0 ms"
    assert unit(0.005)(0.00052) == "0.52 ms"
    assert unit(2.5)(0.125) == "0.12 s"


def test_what_is_there_is_never_told_as_nothing() -> None:
    assert percent(0.31) == "31 %"
    assert percent(0.004) == "<1 %"


def test_many_steps_become_as_many_means_as_there_is_room_for() -> None:
    assert binned(range(10), 4) == (1, 4, 7, 9)
    assert binned((1.0, 2.0), 4) == (1.0, 2.0)
