"""Processes that a script forks train as without ddoctor, whatever their parent is at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.conftest import MakeTraining
from tests.training.test_same_state import PYTHON, UNDER

FORKS = Path(__file__).parent / "forks.py"
# To its end: a stopped script takes along what it has started.
WHOLE = (*UNDER[:-1], "--steps=100000", "--")
# OpenMP's threads do not survive a fork, so with them only early ones are made.
ALL = [("1", "0"), ("1", "1"), ("1", "2"), ("1", "7"), ("0", "8")]


@pytest.mark.ward
@pytest.mark.parametrize(("threads", "seed"), ALL)
def test_every_process_has_the_losses_that_it_has_without(
    training: MakeTraining, tmp_path: Path, threads: str, seed: str
) -> None:
    run = training(FORKS)
    told = []
    for name, before in (("bare", ()), ("under", WHOLE)):
        words = (*PYTHON, str(run.script), name, seed, threads)
        with run.started(*before, *words) as process:
            ended = run.outcome(process)
        told.append(sorted((tmp_path / name).read_text().splitlines()))
    bare, under = told
    assert len(bare) == (12 if threads == "1" else 5), ended.stderr
    assert under == bare
    assert f"{seed}, {seed}" in bare[3 if threads == "1" else 2]
