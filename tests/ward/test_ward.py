"""Training scripts that do not know ddoctor: the one fault of each is told first, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ward.case import Case
from tests.ward.cases import CASES
from tests.ward.running import Impossible, examine


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[] if case.sampled else pytest.mark.ward)
        for case in CASES
    ],
)
def test_what_is_told(case: Case, tmp_path: Path) -> None:
    try:
        examined = examine(case, tmp_path)
    except Impossible as error:
        pytest.skip(str(error))
    fault = examined.fault_of(case)
    told = [(one["cause"], one["severity"], one["because"]) for one in examined.findings]
    assert not fault, f"{fault}\n{told}\n{examined.output[-4000:]}"


def test_there_are_enough_patients() -> None:
    """Sick and sound ones, of which a few are taken in every test run."""
    sick = [case for case in CASES if case.sick]
    sound = [case for case in CASES if not case.sick]
    assert len(sick) >= 24
    assert len(sound) >= 12
    assert len({case.name for case in CASES}) == len(CASES)
    assert sum(case.sampled for case in sick) == sum(case.sampled for case in sound) == 1
