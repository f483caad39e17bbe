from __future__ import annotations

import pytest

from ddoctor import engine
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.training_run import ENGINE, echoing, ending, library, raised, run, user

CAUSE = "activation-checkpoint-reentrant"

# As torch 2.13 raises it.
TWICE = (
    "Expected to mark a variable ready only once. This error is caused by one of the following "
    "reasons: 1) Use of a module parameter outside the `forward` function. 2) Reused parameters in "
    "multiple reentrant backward passes.\nParameter at index 1 with name a.bias has been marked as "
    "ready twice. This means that multiple autograd engine  hooks have fired for this parameter."
)
STACK = (
    user(27, "loss.backward()"),
    ENGINE,
    library("torch/autograd/function.py", 325, "apply"),
    library("torch/utils/checkpoint.py", 331, "backward"),
    ENGINE,
)
OTHERWISE = (
    "torch.utils.checkpoint: Recomputed values for the following tensors have different metadata "
    "than during the forward pass.\ntensor at position 3:"
)


def wrapping(kind: str, find_unused: bool | None = None) -> Wrapping:
    model = Wrapper(
        rank=0,
        kind=kind,  # type: ignore[arg-type]
        name="Net",
        parameters=1,
        parameter_bytes=4,
        trainable_bytes=4,
        find_unused_parameters=find_unused,
    )
    return Wrapping(wrappers=(model,))


def test_a_gradient_that_came_twice(findings: Findings) -> None:
    section = run(raised(0, "RuntimeError", TWICE, stack=STACK, steps=0), ending(1, "hung"))
    (finding,) = findings(CAUSE, section, wrapping("ddp", True))
    assert finding.severity is Severity.ERROR
    assert (
        "in step 1 a checkpointed block passed the gradient of a.bias to DDP a second time, while "
        "DDP searches for unused parameters, at train.py:27"
    ) in finding.because
    assert "use_reentrant=False" in finding.fixes[0].paste
    assert finding.fixes[1].settings == ("ddp.find_unused_parameters=false",)


def test_a_graph_that_stays_the_same(findings: Findings) -> None:
    section = run(raised(0, "RuntimeError", TWICE, stack=STACK))
    (finding,) = findings(CAUSE, section, wrapping("ddp", False))
    assert finding.fixes[1].settings == ("ddp.static_graph=true",)


def test_it_explains_the_deaths() -> None:
    ranks = (raised(0, "RuntimeError", TWICE, stack=STACK), echoing(1))
    (finding,) = engine.examine(Evidence([run(*ranks)]), "run").findings
    assert finding.cause == CAUSE
    assert set(finding.consequences) == {"dead-rank", "first-failure-masked"}


def test_by_number_where_torch_gives_no_name(findings: Findings) -> None:
    message = TWICE.replace(" with name a.bias", "")
    (finding,) = findings(CAUSE, run(raised(0, "RuntimeError", message, stack=STACK)))
    assert "parameter number 1" in finding.because


def test_as_transformers_writes_it(findings: Findings) -> None:
    section = run(raised(0, "RuntimeError", TWICE, stack=STACK), framework="transformers")
    (finding,) = findings(CAUSE, section)
    assert 'gradient_checkpointing_kwargs={"use_reentrant": False}' in finding.fixes[0].paste


@pytest.mark.parametrize("kind", ["fsdp1", "fsdp2"])
def test_what_fsdp_changes_meanwhile(findings: Findings, kind: str) -> None:
    section = run(raised(0, "CheckpointError", OTHERWISE, stack=STACK))
    (finding,) = findings(CAUSE, section, wrapping(kind))
    assert "use_reentrant=True" in finding.fixes[0].paste


def test_quiet_where_no_block_is_recomputed(findings: Findings) -> None:
    section = run(raised(0, "RuntimeError", TWICE, stack=(user(27), ENGINE)))
    assert findings(CAUSE, section, wrapping("ddp")) == ()


def test_quiet_where_it_differs_without_fsdp(findings: Findings) -> None:
    section = run(raised(0, "CheckpointError", OTHERWISE, stack=STACK))
    assert findings(CAUSE, section, wrapping("ddp")) == ()


def test_quiet_on_other_errors_in_a_checkpointed_block(findings: Findings) -> None:
    section = run(raised(0, "OutOfMemoryError", "CUDA out of memory", stack=STACK))
    assert findings(CAUSE, section, wrapping("ddp")) == ()


def test_quiet_where_nothing_failed(findings: Findings) -> None:
    assert findings(CAUSE, run(ending(0, "stopped")), wrapping("fsdp2")) == ()
