from __future__ import annotations

import pytest

from ddoctor import engine
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.software import Environment, Variable
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.gpu_memory_error import CROWDED, PIECES, error, out_of_memory
from tests.training_run import echoing, ending, raised, run

CAUSE = "cuda-oom-fragmentation"
NAME = "PYTORCH_CUDA_ALLOC_CONF"


def environment(value: str, name: str = NAME) -> Environment:
    return Environment(variables=(Variable(name=name, value=value),))


def test_enough_is_unused_but_in_pieces(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(out_of_memory(0, PIECES), ending(1, "hung")))
    assert finding.severity is Severity.ERROR
    assert finding.where.ranks == (0,)
    assert "it requested 3.00 GiB, and 1.20 of 79.2 GiB were free" in finding.because
    assert "16.4 of the 77.4 GiB that torch had reserved were unused" in finding.because
    assert finding.fixes[0].paste == f"export {NAME}=expandable_segments:True"
    assert finding.fixes[0].environment == (f"{NAME}=expandable_segments:True",)


def test_what_is_set_already_stays(findings: Findings) -> None:
    section = environment("max_split_size_mb:128")
    (finding,) = findings(CAUSE, run(out_of_memory(0, PIECES)), section)
    assert finding.fixes[0].paste == f"export {NAME}=max_split_size_mb:128,expandable_segments:True"


@pytest.mark.parametrize("name", [NAME, "PYTORCH_ALLOC_CONF"])
def test_what_is_on_is_no_fix(findings: Findings, name: str) -> None:
    section = environment("expandable_segments:True", name)
    (finding,) = findings(CAUSE, run(out_of_memory(0, PIECES)), section)
    (fix,) = finding.fixes
    assert "shapes" in fix.summary


def test_it_is_the_only_finding() -> None:
    section = run(out_of_memory(0, PIECES), echoing(1))
    (finding,) = engine.examine(Evidence([section]), "run").findings
    assert finding.cause == CAUSE
    assert finding.consequences == ("first-failure-masked",)


@pytest.mark.parametrize(
    "section",
    [
        run(out_of_memory(0, error())),
        run(out_of_memory(0, CROWDED)),
        run(out_of_memory(0, error(unused="5.00 GiB", allocated="72.00 GiB"))),
        run(raised(0, "RuntimeError", "CUDA error: out of memory")),
        run(ending(0, "finished"), ending(1, "finished")),
    ],
    ids=["full", "crowded", "some is always unused", "another error", "sound"],
)
def test_quiet(findings: Findings, section: TrainingRun) -> None:
    assert findings(CAUSE, section) == ()
