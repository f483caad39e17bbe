from __future__ import annotations

import pytest

from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.steps import Phase, RankSteps, Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "find-unused-parameters-unneeded"
STEPS = Steps(
    warm_up=5,
    ranks=tuple(
        RankSteps(
            place=RankPlace(rank=rank, host="a", device="cpu"),
            phases=(Phase(name="forward", seconds=(0.02,) * 20),),
        )
        for rank in range(2)
    ),
)


def wrapper(rank: int, **options: object) -> Wrapper:
    usual: dict[str, object] = {
        "kind": "ddp",
        "name": "Net",
        "find_unused_parameters": True,
        "static_graph": False,
        "inspected_steps": 5,
        "find_unused_seconds": (0.0001,) * 20,
    }
    return Wrapper(
        rank=rank,
        parameters=200,
        parameter_bytes=800,
        trainable_bytes=800,
        **usual | options,  # type: ignore[arg-type]
    )


def both(**options: object) -> Wrapping:
    return Wrapping(wrappers=(wrapper(0, **options), wrapper(1, **options)))


def test_a_small_price_is_a_note(findings: Findings) -> None:
    (finding,) = findings(CAUSE, both(), STEPS)
    assert finding.severity is Severity.NOTE
    assert "0.10 ms, 0.5% of the step" in finding.because
    assert finding.fixes[0].settings == ("ddp.find_unused_parameters=false",)


def test_a_notable_price_is_a_warning(findings: Findings) -> None:
    (finding,) = findings(CAUSE, both(find_unused_seconds=(0.0018,) * 20), STEPS)
    assert finding.severity is Severity.WARNING
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(0.09)


def test_one_slow_step_is_no_price(findings: Findings) -> None:
    (finding,) = findings(CAUSE, both(find_unused_seconds=(0.0001,) * 19 + (0.5,)), STEPS)
    assert finding.severity is Severity.NOTE


def test_the_price_may_be_unknown(findings: Findings) -> None:
    (finding,) = findings(CAUSE, both(find_unused_seconds=()), STEPS)
    assert finding.severity is Severity.NOTE
    assert finding.cost is None
    assert "ms" not in finding.because


def test_each_model_is_judged_alone(findings: Findings) -> None:
    section = Wrapping(
        wrappers=(
            *both(name="Generator", sometimes_unused=("style.weight",)).wrappers,
            *both(name="Critic").wrappers,
        )
    )
    (finding,) = findings(CAUSE, section, STEPS)
    assert "on for Critic" in finding.because


def test_the_option_as_transformers_writes_it(findings: Findings) -> None:
    run = TrainingRun(command=("train.py",), seconds=1, ranks=(), framework="transformers")
    (finding,) = findings(CAUSE, both(), STEPS, run)
    assert "TrainingArguments(..., ddp_find_unused_parameters=False)" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "options",
    [
        {"find_unused_parameters": False},
        {"find_unused_parameters": None, "kind": "fsdp2"},
        {"static_graph": True},
        {"unused": ("pooler.weight",)},
        {"inspected_steps": 2},
        {"inspected_steps": 0},
    ],
)
def test_quiet_where_it_is_off_or_needed_or_unknown(
    findings: Findings, options: dict[str, object]
) -> None:
    assert findings(CAUSE, both(**options), STEPS) == ()


def test_quiet_where_one_rank_needs_it(findings: Findings) -> None:
    section = Wrapping(wrappers=(wrapper(0), wrapper(1, sometimes_unused=("aux.bias",))))
    assert findings(CAUSE, section, STEPS) == ()
