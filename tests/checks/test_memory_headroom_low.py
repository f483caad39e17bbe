from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor.analysis.describe import GIB
from ddoctor.evidence.section import Section
from ddoctor.evidence.steps import Growth, MemoryOverTime
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.gpu_memory_error import PIECES, error, out_of_memory
from tests.memory_sweep.sample import swept
from tests.plans import planned
from tests.training_run import ending, run

CAUSE = "memory-headroom-low"


def test_nothing_that_was_asked_for_leaves_enough(findings: Findings) -> None:
    (finding,) = findings(CAUSE, planned(80, (1,)))
    assert finding.severity is Severity.WARNING
    assert finding.because.startswith("one GPU leaves ")
    assert "expandable_segments:True" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("unused", "gain"), [(4, "about 4.0 GiB"), (0.1, None), (None, ""), ("on", None)]
)
def test_expandable_segments_where_they_help(
    findings: Findings, unused: object, gain: str | None
) -> None:
    plan = planned(80, (1,))
    assert plan.recommended is not None
    parts = replace(plan.recommended.parts, unused=0)
    if isinstance(unused, int | float):
        more = round(unused * GIB)
        rows = tuple(
            replace(row, parts=replace(row.parts, unused=row.parts.unused + more))
            for row in plan.rows
        )
        plan = replace(plan, rows=rows, with_expandable=parts)
    plan = replace(plan, expandable=unused == "on")
    (finding,) = findings(CAUSE, plan)
    gains = [one.expected_gain for one in finding.fixes if "expandable" in (one.paste or "")]
    assert gains == ([] if gain is None else [gain])


def test_a_late_step_that_ran_out_of_memory(findings: Findings) -> None:
    grows = Growth(
        rank=0,
        host="a",
        times=(0.0, 1.0, 2.0),
        steps=(5, 100, 200),
        resident=(900.0,) * 3,
        device=(61.0 * 1024, 62.0 * 1024, 77.0 * 1024),
    )
    section = run(out_of_memory(0, steps=210), ending(1, "hung"))
    (finding,) = findings(CAUSE, section, MemoryOverTime(ranks=(grows,)))
    assert finding.severity is Severity.ERROR
    assert "after 210 steps" in finding.because
    assert finding.because.endswith("; it held 61.0 GiB at first, and 77.0 at the end")
    assert "halve the micro-batch" in finding.fixes[1].summary


def test_what_is_unused_comes_first_where_it_helps(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(out_of_memory(0, steps=210)))
    assert "expandable_segments:True" in finding.fixes[0].paste
    (finding,) = findings(CAUSE, run(out_of_memory(0, error(unused="20.00 MiB"), steps=210)))
    assert "expandable_segments:True" not in finding.fixes[0].paste


def test_a_sweep_that_leaves_less_than_the_margin(findings: Findings) -> None:
    (finding,) = findings(CAUSE, swept(31))
    assert finding.severity is Severity.WARNING
    assert finding.because == (
        "micro-batches of 31 leave 0.5 of 24 GiB on rank 0, less than 5%; at most 32 fit, and 29 "
        "with that margin"
    )
    assert "halve the micro-batch" in finding.fixes[0].summary


def test_a_sweep_where_one_rank_has_less(findings: Findings) -> None:
    (finding,) = findings(CAUSE, swept(16, limits=(24.0, 16.0)))
    assert finding.where.ranks == (1,)
    assert "leave 0 of 16 GiB on rank 1" in finding.because


def test_pieces_of_the_allocator_come_first(findings: Findings) -> None:
    (finding,) = findings(CAUSE, swept(30, unused=0.75))
    assert "expandable_segments:True" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "section",
    [
        swept(29),
        swept(4),
        swept(None),
        swept(40),
        swept(4, fixed=30.0),
        planned(80),
        planned(24),
        planned(24, (16,)),
        planned(24, (1,), trainable=82e6, activations=1),
        run(out_of_memory(0, steps=0)),
        run(out_of_memory(0, PIECES, steps=100)),
        run(ending(0, "finished"), ending(1, "finished")),
    ],
    ids=[
        "as many as are safe",
        "much is left",
        "the current size is unknown",
        "too many",
        "nothing fits at all",
        "two fit",
        "nothing fits",
        "sixteen fit",
        "adapters",
        "never fitted",
        "pieces",
        "sound",
    ],
)
def test_quiet(findings: Findings, section: Section) -> None:
    assert findings(CAUSE, section) == ()
