"""What the page and the Markdown show of a recorded run: bars, waits, the loader, memory."""

from __future__ import annotations

import re
from functools import cache

import pytest
from msgspec.structs import replace

from ddoctor.evidence.loading import CurvePoint, LoaderCurve, Loading
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import PHASES, Growth, MemoryOverTime, Steps, Wait
from ddoctor.models import Verdict
from ddoctor.report import html, markdown, scale, training, training_charts
from ddoctor.report.charts import COLOURS, NARROW, WIDE
from ddoctor.report.step_breakdown import LATEST, step_breakdown
from ddoctor.report.training import CurveRow, curves
from ddoctor.report.waits import ALL, OF_MANY, WaitMatrix, wait_matrix
from tests.report import sample, training_sample
from tests.report.test_html import STYLE

LATE = training_sample.late_rank()
SLOW = training_sample.slow_loader()


@cache
def page(evidence: Evidence) -> str:
    return html.render(sample.report(verdict=Verdict.HEALTHY), evidence)


def text(evidence: Evidence) -> str:
    return markdown.render(sample.report(verdict=Verdict.HEALTHY), evidence)


def headings(source: str) -> list[str]:
    return re.findall(r"<h2[^>]*>([^<]+)</h2>", source)


def test_the_page_shows_each_section_that_was_recorded_and_no_other() -> None:
    assert headings(page(LATE)) == [
        "Examined",
        "Where the step goes",
        "Step by step",
        "Who waited for whom",
        "Predicted scaling",
        "Memory over time",
        "More",
    ]
    assert "The loader alone" in headings(page(SLOW))
    assert headings(page(training_sample.alone()))[1:-1] == ["Where the step goes", "Step by step"]
    assert headings(page(Evidence()))[1:] == ["More"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_phase_has_a_colour_of_its_own(scheme: str) -> None:
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[:2]
    values = dict(re.findall(r"--([\w-]+): (#\w{6})", light if scheme == "light" else dark))
    assert len({values[phase] for phase in PHASES}) == len(PHASES)
    for phase in PHASES:
        assert f".{phase} {{ background: var(--{phase}); }}" in STYLE


def test_no_colour_of_a_chart_is_part_of_another() -> None:
    assert len(set(COLOURS)) == len(set(COLOURS.values()))
    assert set(PHASES) < set(COLOURS)


def test_a_bar_tells_its_phases_in_words() -> None:
    source = page(LATE)
    assert source.count('class="stack-bar"') == 8
    (label,) = re.findall(r'aria-label="(loader [^"]*backward 73\.0 ms[^"]*)"', source)
    assert "waiting 1.0 ms" in label
    assert '<i class="backward" style="flex-grow:0.644' in source
    assert "<code>train.py:117 return slow_penalty(grad)</code>" in source


def test_the_bars_of_many_ranks_are_few() -> None:
    source = page(training_sample.late_rank(256))
    assert source.count('class="stack-bar"') <= LATEST + 2
    assert "rank 5 (node-1) <span" in source
    assert "Own work on 256 ranks: " in source
    assert len(source) < 2**19


def test_all_phases_of_all_steps_are_drawn() -> None:
    made = step_breakdown(LATE)
    assert made is not None
    drawn = training_charts.steps("x", made, WIDE[0])
    for one in made.slices:
        assert f"var(--{one.phase})" in drawn
    assert "var(--evaluation)" not in drawn
    assert drawn.count("fill: var(--checkpoint)") == 1, "only rank 0 writes any"
    assert all(f">rank {rank}</text>" in drawn for rank in range(8))
    assert not re.search(r"#[0-9a-f]{6}", drawn)


def test_a_long_run_is_drawn_as_large_as_a_short_one() -> None:
    def size(count: int) -> int:
        evidence = Evidence([training_sample.steps(2, training_sample.CPU, {}, count=count)])
        made = step_breakdown(evidence)
        assert made is not None
        return len(training_charts.steps("x", made, WIDE[0]))

    assert size(5000) < 1.2 * size(120)


def test_a_step_that_is_far_too_long_does_not_flatten_the_others() -> None:
    made = step_breakdown(training_sample.alone())
    assert made is not None
    (rank,) = made.steps.ranks
    first, *others = rank.phases
    long = replace(first, seconds=(100.0, *first.seconds[1:]))
    steps = replace(made.steps, ranks=(replace(rank, phases=(long, *others)),))
    stretched = step_breakdown(Evidence([steps]))
    assert stretched is not None
    drawn = training_charts.steps("x", stretched, WIDE[0])
    assert ">100</text>" not in drawn
    assert ">2</text>" in drawn


def matrix(evidence: Evidence) -> WaitMatrix:
    made = wait_matrix(evidence)
    assert made is not None
    return made


def test_the_rank_that_all_waited_for_stands_out() -> None:
    made = matrix(LATE)
    rank, seconds = made.latest
    assert rank == 5
    assert seconds / made.step == pytest.approx(0.25, abs=0.01)
    assert made.notable
    shaded = {ends for ends, seconds in made.seconds.items() if made.shade(seconds)}
    assert shaded == {(waiter, 5) for waiter in range(8) if waiter != 5}
    source = page(LATE)
    assert 'title="rank 0 waited for rank 5: 28.3 ms a step">28.3</td>' in source
    assert (
        "The ranks wait most for rank 5: 28.4 ms a step (25 %), the mean of the others." in source
    )


def test_waits_of_less_than_a_tenth_of_the_step_are_not_marked() -> None:
    made = matrix(SLOW)
    assert not made.notable
    assert not any(map(made.shade, made.seconds.values()))
    assert "The ranks wait most" not in text(SLOW)


def test_waits_are_those_of_one_step() -> None:
    (steps,) = LATE.all(Steps)
    one = replace(steps, waits=(Wait(waiter=1, late=0, seconds=3.0),))
    assert matrix(Evidence([one])).seconds == {(1, 0): 3.0 / steps.count}


def test_of_many_ranks_the_ends_of_the_longest_waits_are_shown() -> None:
    made = matrix(training_sample.late_rank(ALL + 1))
    assert 5 in made.late
    assert len(made.waiters) == OF_MANY
    assert len(matrix(training_sample.late_rank(ALL)).waiters) == ALL


def test_no_matrix_without_waits() -> None:
    (steps,) = LATE.all(Steps)
    assert wait_matrix(Evidence([replace(steps, waits=())])) is None
    assert wait_matrix(training_sample.alone()) is None


def curve(*points: tuple[int, float], now: int | None = None) -> CurveRow:
    """Seconds per batch by the number of workers."""
    sections = [
        LoaderCurve(
            points=tuple(
                CurvePoint(
                    rank=rank,
                    name="train.py:31",
                    num_workers=workers,
                    seconds_per_batch=seconds * (1 + rank),
                    batches=9,
                    start_seconds=0.1,
                )
                for workers, seconds in points
                for rank in range(2)
            )
        ),
        *([Loading(loaders=(replace(training_sample.loader(0), num_workers=now),))] if now else []),
    ]
    (made,) = curves(Evidence(sections))
    return made


def test_the_slowest_rank_counts() -> None:
    assert [point.rate for point in curve((1, 0.1), (2, 0.05)).points] == [5.0, 10.0]


def test_the_knee_is_where_more_workers_bring_little() -> None:
    knee = curve((4, 0.026), (1, 0.1), (2, 0.05), (3, 0.027)).knee
    assert knee is not None
    assert knee.num_workers == 3


def test_a_curve_that_still_rises_has_no_knee() -> None:
    assert curve((1, 0.1), (2, 0.05), (4, 0.025)).knee is None
    assert curve((1, 0.1)).knee is None


def test_the_need_is_that_of_a_step_which_never_waits_for_the_loader() -> None:
    (made,) = curves(SLOW)
    work = {name: seconds for name, seconds in training_sample.CPU.items() if name != "loader"}
    rest = sum(work.values()) + training_sample.TRANSFER
    assert made.need is not None
    assert made.need == pytest.approx(1 / rest, rel=0.02)
    assert made.now == 1
    assert curve((1, 0.1)).need is None
    accumulated = [
        replace(
            section, loaders=tuple(replace(one, taken=4 * one.taken) for one in section.loaders)
        )
        for section in SLOW.all(Loading)
    ]
    (four,) = curves(SLOW.with_sections(*accumulated))
    assert four.need == pytest.approx(4 * made.need)


@pytest.mark.parametrize("pixels", [WIDE, NARROW])
def test_the_loader_curve_names_the_knee_and_where_the_script_stands(
    pixels: tuple[int, int],
) -> None:
    (made,) = curves(SLOW)
    drawn = training_charts.loader("x", made, pixels)
    assert ">now</text>" in drawn
    assert ">knee</text>" in drawn
    assert "stroke: var(--expected)" in drawn
    both = training_charts.loader("x", curve((1, 0.1), (2, 0.099), now=1), pixels)
    assert ">now, knee</text>" in both
    assert "var(--expected)" not in both


def growth(rank: int, amounts: list[float]) -> Growth:
    return Growth(
        rank=rank,
        host="a",
        times=tuple(map(float, range(len(amounts)))),
        steps=tuple(range(len(amounts))),
        resident=tuple(amounts),
    )


def test_the_rank_that_grew_most_comes_first() -> None:
    level = growth(0, [100.0] * 19 + [500.0])
    rising = growth(1, [100.0 + n for n in range(20)])
    (panel,) = training_charts.panels(Evidence([MemoryOverTime(ranks=(level, rising))]))
    assert [line.rank for line in panel.lines] == [1, 0]
    assert panel.lines[0].growth == 15
    assert panel.lines[1].growth == 0, "one odd look is no growth"
    assert panel.kind == "process"


def test_of_many_ranks_only_some_are_drawn() -> None:
    many = tuple(growth(rank, [100.0, 100.0 + rank]) for rank in range(200))
    (panel,) = training_charts.panels(Evidence([MemoryOverTime(ranks=many)]))
    assert [line.rank for line in panel.drawn] == list(range(199, 191, -1))


def test_memory_that_no_rank_has_is_no_panel() -> None:
    assert [panel.kind for panel in training_charts.panels(SLOW)] == ["process", "workers"]
    assert [panel.kind for panel in training_charts.panels(LATE)] == ["process", "workers", "GPU"]
    assert training_charts.panels(Evidence([MemoryOverTime(ranks=(growth(0, [5.0]),))])) == ()


def test_the_markdown_has_a_row_for_each_rank() -> None:
    source = text(LATE)
    assert "| ms | loader | to-device | forward | backward |" in source
    assert re.search(r"^\| rank 5 \| 1\.2 \| 2\.1 \| 23\.8 \| 73\.0 \|", source, re.MULTILINE)
    assert "| share of the step | 1 % |" in source
    assert "| backward | rank 5: train.py:117 return slow_penalty(grad) |" in source
    assert "The ranks wait most for rank 5: 28.4 ms a step" in source
    many = text(training_sample.late_rank(256))
    assert many.count("\n| rank ") == 2
    assert "Own work on 256 ranks" in many


def test_what_else_was_recorded_is_there_to_look_up() -> None:
    source = page(SLOW)
    recorded_of_run = source[source.index("All evidence of the run") :]
    assert "<summary>loading</summary>" in recorded_of_run
    assert "DistributedSampler" in recorded_of_run
    assert "<summary>steps</summary>" not in source
    assert "All evidence of the run" not in page(training_sample.late_rank(64))


def test_the_recorded_step_stands_among_the_predicted_ones() -> None:
    made = scale.scaling(LATE)
    assert made is not None
    cells = [made.cells(row) for row in made.rows]
    assert [cell[0] for cell in cells] == ["1", "2", "4", "8", "16", "32"]
    assert cells[0][1:] == ("82.5 ms", "12.1", "1.00", "100 %", "")
    assert cells[3][1:] == ("113.3 ms", "8.83", "5.82", "73 %", "recorded")
    assert all(re.fullmatch(r"[\d.]+ to [\d.]+ %", cell[4]) for cell in cells[4:])
    assert not any("e+" in text for row in cells for text in row)
    assert cells[-1][5] == "predicted"
    assert "| 8 | 113.3 ms | 8.83 | 5.82 | 73 % | recorded |" in text(LATE)
    source = page(LATE)
    assert "8 (recorded)</th>" in source
    assert "the all-reduce as it was measured" not in source


@pytest.mark.ward
def test_large_numbers_of_ranks_are_told_as_numbers() -> None:
    made = scale.scaling(training_sample.late_rank(1024))
    assert made is not None
    assert re.fullmatch(r"\d{4} to \d{4}", made.cells(made.rows[-1])[3])
    assert str(made).count(" on ") == 3, "this one, and two predicted"


def test_one_process_tells_nothing_of_more_without_a_sweep() -> None:
    assert scale.scaling(training_sample.alone()) is None
    assert "scaling" not in dict(training.rows(training_sample.alone()))
