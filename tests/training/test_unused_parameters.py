"""Parameters that get no gradient are named, before DDP fails for them; the flag has its price."""

from __future__ import annotations

import pytest

from tests.training.conftest import MakeTraining
from tests.training.test_frameworks import SCRIPTS


@pytest.mark.ward
def test_on_the_rank_that_leaves_them_out(training: MakeTraining) -> None:
    trained = training(SCRIPTS / "heads.py", "--auxiliary=first-rank").recorded()
    assert trained.first["cause"] == "ddp-unused-parameters"
    assert trained.first["where"]["ranks"] == [1]
    assert "auxiliary" in str(trained.first)
    assert trained.left == []


@pytest.mark.ward
def test_the_price_of_looking_for_them_in_vain(training: MakeTraining) -> None:
    words = ("--find-unused-parameters", "--width=16", "--depth=400", "--batch-size=16")
    trained = training(SCRIPTS / "heads.py", *words).recorded("--no-prove", "--steps=30")
    assert trained.first["cause"] == "find-unused-parameters-unneeded"
    assert "ms" in trained.first["because"]


@pytest.mark.ward
def test_nothing_is_said_where_all_are_used(training: MakeTraining) -> None:
    trained = training(SCRIPTS / "heads.py").recorded("--no-prove", "--steps=30")
    assert trained.alarms == []
