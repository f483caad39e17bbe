from __future__ import annotations

import pytest

from ddoctor import engine
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import TrainingRun
from tests.conftest import Findings
from tests.gpu_memory_error import out_of_memory
from tests.training_run import echoing, ending, raised, run

CAUSE = "nccl-buffer-alloc-oom"
CALLOC = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled cuda error "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\nFailed to CUDA calloc async 608 bytes"
)
FAILURE = CALLOC.replace("Failed to CUDA calloc async 608 bytes", "Cuda failure 2 'out of memory'")


@pytest.mark.parametrize("message", [CALLOC, FAILURE])
def test_no_room_for_its_buffers(findings: Findings, message: str) -> None:
    (finding,) = findings(CAUSE, run(raised(0, "DistBackendError", message), ending(1, "hung")))
    assert finding.where.ranks == (0,)
    assert finding.evidence[0].value == message.rpartition("\n")[2]
    assert "set_per_process_memory_fraction" in finding.fixes[0].paste


def test_it_is_reported_before_the_death() -> None:
    section = run(raised(0, "DistBackendError", CALLOC), echoing(1))
    (finding,) = engine.examine(Evidence([section]), "run").findings
    assert finding.cause == CAUSE


@pytest.mark.parametrize(
    "section",
    [
        run(out_of_memory(0)),
        run(raised(0, "DistBackendError", CALLOC.partition("Last error")[0])),
        run(ending(0, "finished")),
    ],
    ids=["torch's own", "another failure of CUDA", "sound"],
)
def test_quiet(findings: Findings, section: TrainingRun) -> None:
    assert findings(CAUSE, section) == ()
