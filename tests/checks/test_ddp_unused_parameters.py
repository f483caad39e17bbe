from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from ddoctor import engine
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import Phase, RankSteps, Steps
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.training_run import ending
from tests.training_steps import USUAL, steps

CAUSE = "ddp-unused-parameters"
AUX = ("aux.weight", "aux.bias")

# As torch 2.13 raises it.
CRASH = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This "
    "error indicates that your module has parameters that were not used in producing loss.\n"
    "Parameter indices which did not receive grad for rank 1: 2 3\n In addition, you can set"
)
NAMED = CRASH.replace(
    "Parameter indices",
    "Parameters which did not receive grad for rank 1: aux.bias\nParameter indices",
)


def wrapping(*unused: Sequence[str], **options: object) -> Wrapping:
    """Ranks with parameters that never got a gradient."""
    usual: dict[str, object] = {
        "find_unused_parameters": False,
        "static_graph": False,
        "inspected_steps": 3,
        "kind": "ddp",
    }
    return Wrapping(
        wrappers=tuple(
            Wrapper(
                rank=rank,
                name="Net",
                parameters=200,
                parameter_bytes=800,
                trainable_bytes=800,
                unused=tuple(names),
                **usual | options,  # type: ignore[arg-type]
            )
            for rank, names in enumerate(unused)
        )
    )


def run(*messages: str, outcome: str = "failed", framework: str = "") -> TrainingRun:
    """Ranks that raised, or not where the message is empty."""
    return TrainingRun(
        command=("train.py",),
        seconds=9.0,
        framework=framework,
        ranks=tuple(
            RankEnding(
                rank=rank,
                host="a",
                pid=100 + rank,
                outcome=outcome if message else "hung",  # type: ignore[arg-type]
                steps=1,
                exception="RuntimeError" if message else "",
                message=message,
                time=5.0 + rank,
            )
            for rank, message in enumerate(messages)
        ),
    )


def test_the_crash_is_explained_by_name(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(CRASH, CRASH), wrapping(AUX, AUX))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert "after 1 step," in finding.because
    assert "aux.weight, aux.bias on ranks 0-1" in finding.because
    assert [fix.settings for fix in finding.fixes][-1] == ("ddp.find_unused_parameters=true",)


def test_what_lightning_makes_of_the_crash(findings: Findings) -> None:
    message = (
        "It looks like your LightningModule has parameters that were not used in producing the "
        "loss returned by training_step. If this is intentional, you must enable"
    )
    section = run(message, message, framework="lightning")
    (finding,) = findings(CAUSE, section, wrapping(AUX, AUX))
    assert "aux.weight, aux.bias on ranks 0-1" in finding.because
    report = engine.examine(Evidence([section, wrapping(AUX, AUX)]), "run")
    assert report.findings[0].cause == CAUSE
    assert "script-error" not in {one.cause for one in report.findings}


def test_the_names_that_torch_prints_in_debug_mode(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run("", NAMED))
    assert "aux.bias on rank 1; rank 0 had all of its gradients" in finding.because


def test_by_number_where_the_names_are_unknown(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run("", CRASH, ""), wrapping((), (), ()))
    assert finding.where.ranks == (1,)
    assert "number 2, number 3 on rank 1; ranks 0, 2 had" in finding.because
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    printed: list[list[str]] = []
    exec(finding.fixes[0].paste, {"model": model, "print": printed.append})
    assert printed == [["1.weight", "1.bias"]]


def test_different_sets_are_the_hang_to_come(findings: Findings) -> None:
    (finding,) = findings(CAUSE, wrapping((), AUX, ("head.bias",)))
    assert finding.severity is Severity.ERROR
    assert finding.where.ranks == (1, 2)
    assert "aux.weight, aux.bias on rank 1, head.bias on rank 2" in finding.because
    assert "wait for gradients that never arrive" in finding.because
    assert not [fix for fix in finding.fixes if "freeze" in fix.summary]


def test_what_was_left_out_in_some_steps_only(findings: Findings) -> None:
    (finding,) = findings(CAUSE, wrapping((), (), sometimes_unused=AUX))
    assert "DDP stops in the forward pass after such a step" in finding.because


def test_the_fixes_do_what_they_say(findings: Findings) -> None:
    layers = {"body": torch.nn.Linear(2, 2), "aux": torch.nn.Linear(2, 2)}
    model = torch.nn.ModuleDict(layers)
    (finding,) = findings(CAUSE, wrapping(AUX, AUX))
    for names in (AUX, ("aux.weight", "aux.bias", "aux.a", "aux.b", "aux.c")):
        (finding,) = findings(CAUSE, wrapping(names, names))
        part_in_loss, frozen, _ = finding.fixes
        scope: dict[str, Any] = {"model": model, "loss": layers["body"].weight.sum()}
        exec(part_in_loss.paste, scope)
        scope["loss"].backward()
        assert layers["aux"].weight.grad is not None
        assert layers["aux"].weight.grad.abs().sum() == 0
        exec(frozen.paste, scope)
        assert [p.requires_grad for p in model.parameters()] == [True, True, False, False]
        model.zero_grad()
        model.requires_grad_()


def test_the_option_as_the_frameworks_write_it(findings: Findings) -> None:
    for framework, words in (
        ("transformers", "TrainingArguments(..., ddp_find_unused_parameters=True)"),
        ("accelerate", "DistributedDataParallelKwargs(find_unused_parameters=True)"),
        ("lightning", "DDPStrategy(find_unused_parameters=True)"),
        ("", "DistributedDataParallel(model, ..., find_unused_parameters=True)"),
    ):
        section = run(CRASH, CRASH, framework=framework)
        (finding,) = findings(CAUSE, section, wrapping(AUX, AUX))
        assert words in finding.fixes[-1].paste


def test_what_is_never_used_is_a_note_where_ddp_looks_for_it(findings: Findings) -> None:
    (finding,) = findings(CAUSE, wrapping(AUX, AUX, find_unused_parameters=True))
    assert finding.severity is Severity.NOTE
    assert "requires_grad = False" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("unused", "transfer", "severity"),
    [
        (600, 0.05, Severity.WARNING),
        # Few of the bytes; and a transfer that takes little.
        (200, 0.05, Severity.NOTE),
        (600, 0.005, Severity.NOTE),
    ],
)
def test_zeros_that_ddp_sends(
    findings: Findings, unused: int, transfer: float, severity: Severity
) -> None:
    section = wrapping(AUX, AUX, find_unused_parameters=True, unused_bytes=unused)
    taken = steps(USUAL, USUAL, transfer=transfer)
    (finding,) = findings(CAUSE, section, taken)
    assert finding.severity is severity
    others = findings("communication-bound-step", section, taken)
    assert bool(others) is (unused == 200)


def test_quiet_where_every_parameter_is_used(findings: Findings) -> None:
    assert findings(CAUSE, wrapping((), ())) == ()


@pytest.mark.parametrize(
    "options",
    [{"static_graph": True}, {"kind": "fsdp2"}, {"kind": "none", "find_unused_parameters": None}],
)
def test_quiet_where_nothing_waits_for_them(findings: Findings, options: dict[str, object]) -> None:
    assert findings(CAUSE, wrapping(AUX, AUX, **options)) == ()


def test_quiet_where_ddp_looks_for_them_and_they_differ(findings: Findings) -> None:
    assert findings(CAUSE, wrapping((), AUX, find_unused_parameters=True)) == ()
    section = wrapping((), (), find_unused_parameters=True, sometimes_unused=AUX)
    assert findings(CAUSE, section) == ()


@pytest.mark.parametrize(
    ("outcome", "steps_seen", "quiet"),
    [("stopped", 5, True), ("finished", 2, True), ("hung", 5, False), ("stopped", 1, False)],
)
def test_quiet_where_the_training_went_on(
    findings: Findings, outcome: str, steps_seen: int, quiet: bool
) -> None:
    section = TrainingRun(
        command=("train.py",), seconds=9.0, ranks=tuple(ending(rank, outcome) for rank in (0, 1))
    )
    assert (findings(CAUSE, section, wrapping(AUX, AUX, inspected_steps=steps_seen)) == ()) is quiet


def test_quiet_where_ddp_was_bypassed(findings: Findings) -> None:
    ranks = tuple(
        RankSteps(
            place=RankPlace(rank=rank, host="a", device="cpu"),
            phases=(Phase(name="forward", seconds=(0.1, 0.1)),),
            synced_backwards=(0, 0),
        )
        for rank in range(2)
    )
    section = Steps(ranks=ranks, warm_up=0)
    assert findings(CAUSE, wrapping(AUX, AUX), section) == ()
    reduced = replace(section, ranks=tuple(replace(one, synced_backwards=(1, 1)) for one in ranks))
    assert len(findings(CAUSE, wrapping(AUX, AUX), reduced)) == 1


def test_quiet_on_other_failures(findings: Findings) -> None:
    assert findings(CAUSE, run("CUDA out of memory", "Connection closed by peer")) == ()
