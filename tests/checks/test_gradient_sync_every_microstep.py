from __future__ import annotations

import ast

import pytest
from msgspec.structs import replace

from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.steps import Phase, RankSteps, Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "gradient-sync-every-microstep"
COUNT = 20


def steps(
    forwards: int = 4,
    backwards: int = 4,
    synced: int = 4,
    *,
    transfer: float = 0.02,
    count: int = COUNT,
) -> Steps:
    """Steps of 100 ms on two ranks."""
    return Steps(
        warm_up=5,
        ranks=tuple(
            RankSteps(
                place=RankPlace(rank=rank, host="a", device="cpu"),
                phases=(
                    Phase(name="backward", seconds=(0.1 - transfer,) * count),
                    Phase(name="transfer", seconds=(transfer,) * count),
                ),
                forwards=(forwards,) * count,
                backwards=(backwards,) * count,
                synced_backwards=(synced,) * count,
            )
            for rank in range(2)
        ),
    )


def wrapping(*kinds: str) -> Wrapping:
    return Wrapping(
        wrappers=tuple(
            Wrapper(
                rank=rank,
                kind=kind,  # type: ignore[arg-type]
                name="Net",
                parameters=1,
                parameter_bytes=4,
                trainable_bytes=4,
            )
            for rank in range(2)
            for kind in kinds
        )
    )


def run(framework: str = "", *optimizers: str) -> TrainingRun:
    return TrainingRun(
        command=("train.py",), seconds=9, ranks=(), framework=framework, optimizers=optimizers
    )


def test_what_is_reduced_for_nothing(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(), wrapping("ddp"))
    assert finding.severity is Severity.WARNING
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(0.15)
    assert "4 backward passes" in finding.because
    assert "model.no_sync()" in finding.fixes[0].paste
    ast.parse(finding.fixes[0].paste)


def test_a_note_where_backward_hides_it(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(transfer=0.005), wrapping("ddp"))
    assert finding.severity is Severity.NOTE


def test_accelerate_has_its_own_words_for_it(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(), wrapping("ddp"), run("accelerate", "AdamW"))
    assert "Accelerator(gradient_accumulation_steps=4)" in finding.fixes[0].paste
    ast.parse(finding.fixes[0].paste)


def test_the_last_step_of_an_epoch_may_be_shorter(findings: Findings) -> None:
    section = steps()
    ranks = tuple(
        replace(
            rank,
            **{
                name: (*getattr(rank, name)[:-1], 1)
                for name in ("forwards", "backwards", "synced_backwards")
            },
        )
        for rank in section.ranks
    )
    assert len(findings(CAUSE, replace(section, ranks=ranks), wrapping("ddp"))) == 1


@pytest.mark.parametrize(
    "section",
    [
        steps(1, 1, 1),
        # no_sync in all but the last.
        steps(synced=1),
        # Not seen.
        steps(synced=0),
        # Two losses of one forward, or a discriminator with two batches.
        steps(forwards=1, backwards=2, synced=2),
        steps(forwards=3, backwards=2, synced=2),
        steps(count=9),
    ],
)
def test_quiet_where_nothing_is_reduced_in_vain(findings: Findings, section: Steps) -> None:
    assert findings(CAUSE, section, wrapping("ddp")) == ()


def test_quiet_where_models_or_optimizers_take_turns(findings: Findings) -> None:
    assert findings(CAUSE, steps(2, 2, 2), wrapping("ddp", "ddp")) == ()
    assert findings(CAUSE, steps(2, 2, 2), wrapping("ddp"), run("", "Adam", "SGD")) == ()
    section = steps(2, 2, 2)
    ranks = tuple(replace(rank, optimizer_steps=(2,) * COUNT) for rank in section.ranks)
    assert findings(CAUSE, replace(section, ranks=ranks), wrapping("ddp")) == ()


def test_quiet_without_ddp(findings: Findings) -> None:
    assert findings(CAUSE, steps(), wrapping("fsdp2")) == ()
