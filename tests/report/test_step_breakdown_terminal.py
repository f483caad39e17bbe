"""The step as bars of letters, and the run in the head of the report."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import RankEnding, TrainingRun, Trials
from ddoctor.report import bars, markdown, terminal, training
from ddoctor.report.step_breakdown import LETTERS, step_breakdown
from tests.report import sample, training_sample
from tests.report.test_terminal import _without_styles, lines
from tests.training_run import ending

RECORDED = ("late-rank", "slow-loader", "many-ranks")


def drawn(text: list[str]) -> dict[str, str]:
    """The letters of each bar by the name before it."""
    found = (re.match(r" +(rank \d+) +▏([a-z]+)▕", line) for line in text)
    return {match[1]: match[2] for match in found if match}


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("width", [60, 80, 200])
def test_lines_fit_and_have_no_tail(name: str, width: int) -> None:
    for line in lines(name, width):
        assert line == line.rstrip()
        assert len(line) <= min(width, terminal.WIDEST), line


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_bar_is_as_its_step(width: int) -> None:
    text = drawn(lines("late-rank", width))
    assert list(text) == [f"rank {rank}" for rank in range(8)]
    late, other = text["rank 5"], text["rank 1"]
    assert abs(len(late) - len(other)) <= 1
    assert late.count("b") > 1.4 * other.count("b")
    assert other.count("w") > len(other) / 5
    assert late.count("w") <= 1
    order = "".join(LETTERS.values())
    assert [*late] == sorted(late, key=order.index)


def test_every_letter_of_a_bar_is_explained() -> None:
    text = lines("late-rank")
    explained = {
        line[2] for line in text if re.match(r"  [a-z] [a-z-]+ +<?[\d.]+ ms +<?\d+ %", line)
    }
    assert set("".join(drawn(text).values())) <= explained


def test_the_bars_stand_between_the_facts_and_the_findings() -> None:
    text = "\n".join(lines("late-rank"))
    places = [
        text.index(words)
        for words in (
            "  113.3 ms, mean of 60 steps on 8 ranks",
            "where the step goes",
            "  rank 0  ▏",
            "  b backward    46.8 ms  41 %  rank 5: train.py:117 return slow_penalty(grad)",
            "  the ranks wait most for rank 5: 28.4 ms a step (25 %), the mean of the others",
            "1. warning: One rank is slower",
        )
    ]
    assert places == sorted(places)


def test_of_many_ranks_few_are_drawn_and_all_are_summed_up() -> None:
    text = lines("many-ranks", 100)
    assert len(drawn(text)) == 2
    assert any(line.endswith("ms slowest, waits least") for line in text)
    assert any(line.startswith("  own work on 256 ranks: 78") for line in text)
    assert len(lines("many-ranks", 60)) < 60


def test_nobody_is_named_late_who_costs_little() -> None:
    assert not any("most was waited" in line for line in lines("slow-loader"))


def test_a_single_process_has_a_bar_too() -> None:
    made = step_breakdown(training_sample.alone())
    assert made is not None
    first, *legend = [line.plain for line in bars.lines(made, 60)]
    assert first.startswith("  rank 0  ▏l")
    assert first.endswith("▕ 1.00 s")
    assert [line.split()[1] for line in legend] == [
        "loader",
        "forward",
        "backward",
        "optimizer",
        "rest",
    ]


def test_colour_adds_nothing_to_the_letters() -> None:
    coloured = "\n".join(lines("late-rank", colour=True))
    assert "48;2;" in coloured
    assert "".join(_without_styles(coloured)) == "\n".join(lines("late-rank"))


def test_nothing_that_a_script_says_steers_the_terminal() -> None:
    text = "\n".join(lines("hostile-run", 60))
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_without_a_recorded_run_nothing_of_it_is_said() -> None:
    for name in ("sick", "nothing"):
        text = "\n".join(lines(name)) + markdown.render(*sample.SAMPLES[name]())
        assert "here the step goes" not in text
        assert "warm-up" not in text
        assert training_rows(name) == []


def training_rows(name: str) -> list[tuple[str, str]]:
    _, evidence = sample.SAMPLES[name]()
    return list(training.rows(evidence))


def told(evidence: Evidence) -> dict[str, str]:
    return dict(training.rows(evidence))


def test_the_run_is_told_in_few_rows() -> None:
    rows = told(training_sample.late_rank())
    assert list(rows) == ["script", "step", "scaling", "ended"]
    assert rows.pop("scaling").startswith("efficiency 73 % on 8 ranks, predicted ")
    assert rows == {
        "script": "train.py --epochs 3 --data /data/imagenet (accelerate, AdamW)",
        "step": "113.3 ms, mean of 60 steps on 8 ranks after 12 warm-up steps "
        "(8 of 10 took 110.2 to 115.0); 2260 samples/s",
        "ended": "stopped as requested after 72 steps; 34.2 s in total",
    }


def test_the_loader_alone_is_told_against_the_need() -> None:
    row = told(training_sample.slow_loader())["loader alone"]
    assert row.startswith("train.py:31: 10.8 (1), 21.6 (2), 32.5 (3), ")
    assert re.search(r" batches/s \(workers\); the step could use 27\.\d$", row)


def test_each_change_that_was_tried_is_told() -> None:
    rows = [text for label, text in training.rows(training_sample.failed()) if label == "tried"]
    assert rows == [
        "loader.num_workers=3: 0.089 → 0.046 s/step (-48 %)",
        "torch.threads=1: failed: no answer within 60 s",
    ]
    few = ((0.09, 0.09), (0.089, 0.092)), ((None, None), (0.1, 0.1))
    trials = Trials(trials=tuple(training_sample.trial("a=1", *turns) for turns in few))
    assert [text for _, text in training.rows(Evidence([trials]))] == [
        "a=1: 0.09 → 0.0905 s/step (+1 %), no clear gain",
        "a=1: runs only with it, 0.1 s/step",
    ]


def test_a_run_of_one_process_is_said_to_be_one() -> None:
    run = TrainingRun(command=("train.py",), seconds=1.0, ranks=(ending(0, "finished"),))
    assert told(Evidence([run]))["ranks"].startswith("one process")
    # The script itself started others; or a log names one of many.
    assert "ranks" not in told(Evidence([replace(run, world=2)]))
    assert "ranks" not in told(Evidence([replace(run, log="train.log")]))


def test_a_rank_that_lost_another_is_not_the_first_to_fail() -> None:
    lost = replace(
        training_sample.ending(0),
        outcome="failed",
        exception="RuntimeError",
        message="Connection closed by peer [127.0.0.1]:4711",
        time=8.0,
    )
    own = replace(
        training_sample.ending(1),
        outcome="failed",
        exception="ValueError",
        message="no label\nin this batch",
        time=9.0,
    )
    assert told(Evidence([training_sample.run(2, lost, own)]))["ended"].startswith(
        "rank 1 failed first after 72 steps: ValueError: no label; "
        "rank 0 lost the connection to another rank after 72 steps; "
    )


def test_the_first_that_failed_is_named_before_those_that_waited_for_it() -> None:
    row = told(training_sample.failed())["ended"]
    assert row.startswith(
        "rank 1 failed first after 21 steps: torch.OutOfMemoryError: CUDA out of memory."
    )
    assert row.endswith("…; rank 0 hung in all_reduce for 29.8 s after 21 steps; 34.2 s in total")
    assert len(row) < 300


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"outcome": "finished"}, "finished the script after 72 steps"),
        ({"outcome": "interrupted"}, "interrupted from outside after 72 steps"),
        ({"outcome": "killed", "exit_code": -9}, "killed by signal 9 after 72 steps"),
        ({"outcome": "killed", "printed": "Bus error"}, "killed after 72 steps: Bus error"),
        ({"outcome": "failed", "exit_code": 3}, "failed after 72 steps: exit code 3"),
        ({"outcome": "hung", "doing": "backward"}, "hung in backward after 72 steps"),
    ],
)
def test_each_ending_has_its_words(changes: dict[str, str | int], words: str) -> None:
    run = training_sample.run(1, replace(training_sample.ending(0), **changes))
    assert told(Evidence([run]))["ended"] == f"{words}; 34.2 s in total"


def test_ranks_that_ended_alike_share_a_part() -> None:
    def end(rank: int) -> RankEnding:
        return replace(training_sample.ending(rank), outcome="finished", steps=70 + rank)

    run = training_sample.run(4, end(2), end(3))
    assert told(Evidence([run]))["ended"].startswith(
        "ranks 0-1 stopped as requested after 72 steps; "
        "ranks 2-3 finished the script after 72 to 73 steps; "
    )


def test_a_limit_is_told() -> None:
    run: TrainingRun = replace(training_sample.run(2), limit="600 s were over")
    assert "after 72 steps (600 s were over); " in told(Evidence([run]))["ended"]
