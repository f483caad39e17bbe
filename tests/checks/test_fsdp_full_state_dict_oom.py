from __future__ import annotations

import pytest

from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from tests.conftest import Findings
from tests.gpu_memory_error import CROWDED, out_of_memory
from tests.training_run import ending, library, run, user

CAUSE = "fsdp-full-state-dict-oom"
GATHERS = (
    user(80, "torch.save(model.state_dict(), path)"),
    library("torch/nn/modules/module.py", 2200, "state_dict"),
    library("torch/distributed/fsdp/_state_dict_utils.py", 300, "_full_pre_state_dict_hook"),
)
FULL = (
    user(81, "whole = one.full_tensor()"),
    library("torch/distributed/tensor/_api.py", 600, "full_tensor"),
)


@pytest.mark.parametrize("stack", [GATHERS, FULL], ids=["state_dict", "full_tensor"])
def test_while_it_is_gathered(findings: Findings, stack: tuple[object, ...]) -> None:
    model = Wrapper(
        rank=0,
        kind="fsdp1",
        name="T",
        parameters=7 * 10**9,
        parameter_bytes=28 * 2**30,
        trainable_bytes=28 * 2**30,
    )
    section = run(out_of_memory(0, stack=stack), ending(1, "hung"))
    (finding,) = findings(CAUSE, section, Wrapping(wrappers=(model,)))
    assert "all parameters together are 28.0 GiB" in finding.because
    assert "dcp.save" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "section",
    [
        run(out_of_memory(0)),
        run(out_of_memory(0, stack=GATHERS[:2])),
        run(out_of_memory(0, CROWDED, stack=GATHERS)),
    ],
    ids=["in training", "of a model that is not sharded", "somebody else's"],
)
def test_quiet(findings: Findings, section: TrainingRun) -> None:
    assert findings(CAUSE, section) == ()
