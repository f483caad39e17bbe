from __future__ import annotations

from typing import Any

import pytest

from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.evidence.steps import Phase, RankSteps, Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.live_look import look, moving
from tests.training_run import raised, run

CAUSE = "fsdp-wrap-policy-wrong"
MILLION = 1_000_000


def wrapping(**options: Any) -> Wrapping:
    usual: dict[str, Any] = {
        "kind": "fsdp2",
        "name": "Llama",
        "parameters": 1300 * MILLION,
        "units": 1,
        "block": "LlamaDecoderLayer",
        "blocks": 22,
    }
    fields = usual | options
    size = 4 * fields["parameters"]
    return Wrapping(
        wrappers=tuple(
            Wrapper(rank=rank, parameter_bytes=size, trainable_bytes=size, **fields)
            for rank in range(2)
        )
    )


def steps(transfer: float) -> Steps:
    ranks = (
        RankSteps(
            place=RankPlace(rank=rank, host="a", device="cpu"),
            phases=(
                Phase(name="forward", seconds=(1.0 - transfer,) * 20),
                Phase(name="transfer", seconds=(transfer,) * 20),
            ),
        )
        for rank in range(2)
    )
    return Steps(ranks=tuple(ranks), warm_up=5)


def test_a_large_model_in_one_unit(findings: Findings) -> None:
    (finding,) = findings(CAUSE, wrapping())
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.CERTAIN)
    assert (
        "wraps Llama as one unit, although it has 22 LlamaDecoderLayers: every rank gathers all "
        "1,300 million parameters at once"
    ) in finding.because
    assert "isinstance(module, LlamaDecoderLayer)" in finding.fixes[0].paste


def test_a_smaller_one_where_the_gathering_is_paid_for(findings: Findings) -> None:
    (finding,) = findings(CAUSE, wrapping(parameters=3 * MILLION), steps(0.25))
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(0.25)
    assert "25% of the step" in finding.because


def test_one_that_does_no_harm_is_a_note(findings: Findings) -> None:
    (finding,) = findings(CAUSE, wrapping(parameters=3 * MILLION), steps(0.02))
    assert finding.severity is Severity.NOTE
    assert "all 3,000,000 parameters at once" in finding.because


def test_where_its_blocks_are_not_known(findings: Findings) -> None:
    (finding,) = findings(CAUSE, wrapping(blocks=None, block="", kind="fsdp1"))
    assert finding.confidence is Confidence.LIKELY
    assert "ModuleWrapPolicy({TransformerBlock})" in finding.fixes[0].paste
    assert "replace TransformerBlock by the class" in finding.fixes[0].caution


def test_accelerate_is_configured(findings: Findings) -> None:
    section = TrainingRun(command=("x.py",), seconds=1, ranks=(), framework="accelerate")
    (finding,) = findings(CAUSE, wrapping(), section)
    assert "fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer" in finding.fixes[0].paste


def test_a_class_that_the_model_has_not(findings: Findings) -> None:
    message = "Could not find the transformer layer class LlamaLayer in the model."
    ranks = (raised(rank, "ValueError", message) for rank in range(2))
    (finding,) = findings(CAUSE, run(*ranks))
    assert finding.severity is Severity.ERROR
    assert "names the layer class LlamaLayer" in finding.because


SMALL: dict[str, Any] = {"parameters": 2 * MILLION, "block": "Layer", "blocks": 6, "units": 37}


@pytest.mark.parametrize(("transfer", "severity"), [(0.4, Severity.WARNING), (0.2, Severity.NOTE)])
def test_layers_that_are_units(findings: Findings, transfer: float, severity: Severity) -> None:
    (finding,) = findings(CAUSE, wrapping(**SMALL), steps(transfer))
    assert finding.severity is severity
    assert "as 37 units, although it has 6 Layers: each unit has 211 KiB" in finding.because
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(transfer * 30 / 37, abs=0.001)
    assert "isinstance(module, Layer)" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "options",
    [
        {"units": 7},
        # The embeddings and the head are units as well.
        {"units": 9},
        {"parameters": 20 * MILLION},
        {"blocks": None},
        {"kind": "ddp"},
    ],
)
def test_quiet_where_blocks_are_units(findings: Findings, options: dict[str, Any]) -> None:
    assert findings(CAUSE, wrapping(**{**SMALL, **options}), steps(0.4)) == ()


def test_quiet_where_many_units_cost_little(findings: Findings) -> None:
    assert findings(CAUSE, wrapping(**SMALL), steps(0.1)) == ()


@pytest.mark.parametrize(
    "options",
    [
        {"units": 23},
        {"units": 0},
        {"kind": "ddp"},
        {"parameters": 3 * MILLION, "blocks": None},
        # Nothing to make a unit of.
        {"blocks": 1},
    ],
)
def test_quiet_where_it_is_split_or_small_or_in_one_piece(
    findings: Findings, options: dict[str, Any]
) -> None:
    assert findings(CAUSE, wrapping(**options), steps(0.02)) == ()


def test_quiet_on_other_failures(findings: Findings) -> None:
    assert findings(CAUSE, run(raised(0, "ValueError", "no layer"))) == ()


WRAPS = SourceLine(file="train.py", line=30, text="fully_shard(one)")
LEAVES = Script(files=("train.py",), leaf_units=(WRAPS,))


@pytest.mark.parametrize(("waiting", "severity"), [(30, "warning"), (12, "note"), (4, None)])
def test_layers_that_are_units_in_a_live_run(
    findings: Findings, waiting: int, severity: str | None
) -> None:
    met = {"collective": waiting, "forward": 30, "backward-or-wait": 66 - waiting, "rest": 4}
    live = look(*(moving(rank, met, asleep=waiting / 100) for rank in range(2)))
    found = findings(CAUSE, live, LEAVES)
    assert [one.severity.value for one in found] == ([severity] if severity else [])


def test_layers_that_are_units_before_a_run(findings: Findings) -> None:
    (finding,) = findings(CAUSE, LEAVES)
    assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.POSSIBLE)
    # A recorded run shows how large the units are.
    assert findings(CAUSE, LEAVES, wrapping()) == findings(CAUSE, wrapping())
