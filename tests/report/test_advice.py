"""What a search found, in the terminal, in Markdown, on the page and from a bundle."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from ddoctor import engine
from ddoctor.evidence import bundle
from ddoctor.evidence.plan import Plan
from ddoctor.evidence.section import Evidence
from ddoctor.report import advice, html, markdown, terminal
from ddoctor.report import plan as plans
from tests.forecast.test_advice import planned


def shown(plan: Plan, width: int) -> list[str]:
    evidence, written = Evidence([plan]), StringIO()
    terminal.render(engine.examine(evidence, "plan"), evidence, Console(file=written, width=width))
    return written.getvalue().splitlines()


@pytest.mark.parametrize("gpus", [(64,), (8, 16, 64)])
def test_a_terminal_of_60_columns_has_room_for_all_of_it(gpus: tuple[int, ...]) -> None:
    found = planned(gpus=gpus, global_batch=512)
    lines = shown(found, 60)
    assert max(map(len, lines)) <= 60
    (head,) = (line for line in lines if line.split()[:2] == ["strategy", "batch"])
    assert head.split()[-2:] == ["GiB", "tokens/s"]
    assert ("the fastest on each number of GPUs" in lines) == (len(gpus) > 1)


def test_a_wide_terminal_has_the_step_time_too() -> None:
    lines = shown(planned(global_batch=512), 100)
    (head,) = (line for line in lines if line.split()[:2] == ["strategy", "batch"])
    assert head.split()[-3:] == ["GiB", "s/step", "tokens/s"]


def test_the_rows_of_the_frontier() -> None:
    found = planned(global_batch=512)
    (table,) = advice.tables(found)
    best = found.candidates[0]
    assert table.head[:3] == ("strategy", "batch", "checkpointing")
    assert table.rows[0][1:3] == (advice.batch(best), best.checkpointing)
    assert table.chosen == 0
    assert [row[-1] for row in table.rows] == ["←", *[""] * (len(table.rows) - 1)]
    assert [row[3][0] == "~" for row in table.rows] == [False, *[True] * (len(table.rows) - 1)]
    tokens = 512 * 8192 / best.step.seconds
    assert float(table.rows[0][5].replace(",", "")) == pytest.approx(tokens, rel=0.001)


def test_each_number_of_gpus_has_its_fastest() -> None:
    _, table = advice.tables(planned(gpus=(16, 8, 64), global_batch=512))
    assert [row[0] for row in table.rows] == ["8", "16", "64"]
    assert table.chosen == 2
    speeds = [float(row[-2].replace(",", "")) for row in table.rows]
    assert speeds == sorted(speeds)


def test_the_settings_are_the_options_of_the_same_plan() -> None:
    found = planned(global_batch=512)
    head = dict(plans.seen(Evidence([found])))
    best = found.candidates[0]
    assert head["settings"].startswith(
        f"--gpus 64 --micro-batch {best.micro_batch} --global-batch 512 "
        f"--checkpointing {best.checkpointing}, {best.accumulation} accumulation step"
    )
    assert head["search"].endswith("at a global batch of 512")
    assert "the fastest that fits" in head["recommended"]


def test_without_a_global_batch_the_report_says_so() -> None:
    head = dict(plans.seen(Evidence([planned()])))
    assert "each micro-batch at its own global batch (set --global-batch" in head["search"]


def test_without_a_search_none_is_shown() -> None:
    found = msgspec.structs.replace(planned(), candidates=())
    assert list(advice.tables(found)) == []
    assert "settings" not in dict(plans.seen(Evidence([found])))
    assert 'id="search"' not in html.render(
        engine.examine(Evidence([found]), "plan"), Evidence([found])
    )


def test_samples_without_tokens() -> None:
    found = msgspec.structs.replace(planned(global_batch=512), sequence=None)
    (table,) = advice.tables(found)
    assert table.head[-2] == "samples/s"


def test_markdown_has_the_frontier() -> None:
    found = Evidence([planned(global_batch=512)])
    text = markdown.render(engine.examine(found, "plan"), found)
    assert "## On 64 GPUs: the fastest, and what needs less memory for its speed" in text
    assert "| strategy | batch | checkpointing | GiB | s/step | tokens/s |" in text


def test_the_page_draws_a_point_for_each_row() -> None:
    plan = planned(global_batch=512)
    found = Evidence([plan])
    page = html.render(engine.examine(found, "plan"), found)
    section = page[page.index('aria-labelledby="search"') :]
    wide = section[section.index('class="wide"') : section.index('class="narrow"')]
    numbers = re.findall(r">\s*(\d+)\s*</text>", wide)
    assert {str(one) for one in range(1, len(plan.candidates) + 1)} <= set(numbers)
    assert "var(--accent)" in wide
    assert "http" not in wide.replace("http://www.w3.org", "")


def test_a_bundle_shows_the_same(tmp_path: Path) -> None:
    path, plan = tmp_path / "plan.json", planned(gpus=(8, 64), global_batch=512)
    bundle.write(path, Evidence([plan]))
    (again,) = bundle.read(path).all(Plan)
    assert again == plan
    assert shown(again, 80) == shown(plan, 80)


def test_a_step_without_time_breaks_no_page() -> None:
    plan = planned(global_batch=512)
    none = msgspec.structs.replace(plan.candidates[0].step, compute=0.0, exposed=0.0)
    still = [msgspec.structs.replace(one, step=none, memory=0) for one in plan.candidates]
    found = Evidence([msgspec.structs.replace(plan, candidates=tuple(still))])
    assert html.render(engine.examine(found, "plan"), found)
