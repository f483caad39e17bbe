from __future__ import annotations

import pytest

from ddoctor.evidence.section import Section
from ddoctor.evidence.steps import Growth, MemoryOverTime
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.gpu_memory_error import PIECES, error, out_of_memory
from tests.plans import planned
from tests.training_run import ending, run

CAUSE = "memory-headroom-low"


def test_nothing_that_was_asked_for_leaves_enough(findings: Findings) -> None:
    (finding,) = findings(CAUSE, planned(80, (1,)))
    assert finding.severity is Severity.WARNING
    assert finding.because.startswith("one GPU leaves ")
    assert "expandable_segments:True" in finding.fixes[0].paste


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
    assert "half the micro-batch" in finding.fixes[1].summary


def test_what_is_unused_comes_first_where_it_helps(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(out_of_memory(0, steps=210)))
    assert "expandable_segments:True" in finding.fixes[0].paste
    (finding,) = findings(CAUSE, run(out_of_memory(0, error(unused="20.00 MiB"), steps=210)))
    assert "expandable_segments:True" not in finding.fixes[0].paste


@pytest.mark.parametrize(
    "section",
    [
        planned(80),
        planned(24),
        planned(24, (16,)),
        planned(24, (1,), trainable=82e6, activations=1),
        run(out_of_memory(0, steps=0)),
        run(out_of_memory(0, PIECES, steps=100)),
        run(ending(0, "finished"), ending(1, "finished")),
    ],
    ids=["two fit", "nothing fits", "sixteen fit", "adapters", "never fitted", "pieces", "sound"],
)
def test_quiet(findings: Findings, section: Section) -> None:
    assert findings(CAUSE, section) == ()
