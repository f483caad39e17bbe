"""A sample of the inputs of each kind; ``python -m tests.fuzz`` tries many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.kinds import KINDS
from tests.fuzz.trying import tried

FEW = {
    **{"diagnose": 25, "charts": 2, "diff": 10, "plan": 15, "dump": 50, "snapshot": 50, "log": 50},
    **{"trace": 25, "text": 50, "launch": 50},
}
"""Inputs in a usual run, by kind; those of ``config`` and ``model`` import torch."""
MANY = {"diagnose": 1_000, "charts": 50, "diff": 200, "plan": 500, "model": 20}


@pytest.mark.parametrize("kind", FEW)
def test_no_input_is_a_fault(kind: str, tmp_path: Path) -> None:
    assert tried(kind, tmp_path, range(FEW[kind])).faults == {}


@pytest.mark.ward
@pytest.mark.parametrize("kind", KINDS)
def test_no_input_of_many_is_a_fault(kind: str, tmp_path: Path) -> None:
    first = FEW.get(kind, 0)
    assert tried(kind, tmp_path, range(first, first + MANY.get(kind, 2_000))).faults == {}
