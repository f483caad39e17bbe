"""Scripts that do not know ddoctor run as ever, and their steps are taken apart."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean

import pytest

from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import TrainingRun
from tests.training.conftest import MakeTraining

SCRIPTS = Path(__file__).parents[1] / "ward" / "scripts"
# How fast it was, in which no two runs agree.
SPEED = re.compile(r"([\d.]+) steps/s|'train_\w+': '?[\d.]+'?")
STEPS_PER_RATE = 10


@pytest.mark.ward
@pytest.mark.parametrize(
    ("name", "words", "steps"),
    [
        ("images", ("--steps=60", "--num-workers=0"), 60),
        ("accelerated", ("--epochs=1", "--batches=60"), 60),
        ("hf_trainer", ("--max-steps=60",), 60),
        ("sharded", ("--steps=60", "--batch-size=4096", "--at-once"), 60),
    ],
)
def test_it_runs_as_without(
    training: MakeTraining, name: str, words: tuple[str, ...], steps: int
) -> None:
    script = training(SCRIPTS / f"{name}.py", *words)
    bare, recorded = script.bare(), script.recorded("--no-prove", f"--steps={10 * steps}")
    assert bare.exit_code == recorded.exit_code == 0, recorded.stderr
    said = SPEED.sub("", bare.stdout)
    assert SPEED.sub("", recorded.stdout)[: len(said)] == said
    assert recorded.alarms == []
    (run,) = recorded.evidence.all(TrainingRun)
    assert [(one.outcome, one.steps) for one in run.ranks] == [("finished", steps)] * 2
    (taken,) = recorded.evidence.all(Steps)
    assert all({"forward", "backward", "optimizer"} <= set(rank.by_name) for rank in taken.ranks)
    # The script has a clock of its own, and the phases are to add up to what it says.
    rates = [float(one) for one in SPEED.findall(recorded.stdout) if one]
    own = fmean(1 / rate for rate in rates[-(-taken.warm_up // STEPS_PER_RATE) :])
    assert fmean(taken.ranks[0].seconds) == pytest.approx(own, rel=0.1)
