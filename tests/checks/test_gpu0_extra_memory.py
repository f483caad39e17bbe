from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from ddoctor.evidence.gpus import GpuProcess, Gpus
from ddoctor.evidence.printed import GpuProcesses, ListedProcess
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.gpu_memory_error import CROWDED, SENT_BY_RANKS, error, out_of_memory
from tests.healthy.gpus import otherwise
from tests.healthy.host import HOST
from tests.live_look import look, moving
from tests.training_run import ending, library, run, user

CAUSE = "gpu0-extra-memory"
GIB = 2**30
LOADS = (
    user(9, "state = torch.load(path)"),
    library("torch/serialization.py", 1500, "load"),
)
RANKS = tuple(ending(one, "hung") for one in range(1, 4))


def test_others_of_the_run_hold_the_memory(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(out_of_memory(0, SENT_BY_RANKS), *RANKS))
    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.CERTAIN
    assert "ranks 1-3 hold 3.2 GiB of the same GPU" in finding.because
    assert "set_device" in finding.fixes[0].paste


def test_a_checkpoint_is_read_onto_the_first_gpu(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(out_of_memory(1, CROWDED, stack=LOADS), ending(0, "hung")))
    assert "loaded a checkpoint onto GPU 0, which belongs to another rank" in finding.because
    assert "train.py:9" in finding.because
    assert "map_location" in finding.fixes[1].paste


def gpus(held: Mapping[int, Mapping[int, float]]) -> Gpus:
    """By GPU and rank, in GiB."""
    return otherwise(
        {
            index: {
                "processes": tuple(
                    GpuProcess(pid=100 + rank, memory=int(size * GIB), name="python", holder="own")
                    for rank, size in ranks.items()
                )
            }
            for index, ranks in held.items()
        }
    )


OWN = {rank: {rank: 40.0} for rank in range(8)}
LOOK = look(*(moving(rank) for rank in range(8)), host=HOST)


def test_contexts_of_a_live_run(findings: Findings) -> None:
    held = {**OWN, 0: {0: 40.0, **dict.fromkeys(range(1, 8), 0.5)}}
    (finding,) = findings(CAUSE, LOOK, gpus(held))
    assert finding.severity is Severity.WARNING
    assert "ranks 1-7 hold 3.5 GiB of GPU 0" in finding.because
    assert (finding.where.ranks, finding.where.devices) == (tuple(range(1, 8)), ("cuda:0",))
    assert finding.cost is not None
    assert finding.cost.value == 3.5


@pytest.mark.parametrize(
    "section",
    [
        run(out_of_memory(0, error()), *RANKS),
        run(out_of_memory(0, CROWDED), *RANKS),
        # With one GPU to see for each rank, GPU 0 is its own.
        run(out_of_memory(1, error(), stack=LOADS), ending(0, "hung")),
        run(out_of_memory(0, CROWDED, stack=LOADS), *RANKS),
    ],
    ids=["full", "somebody else's", "its own", "the first rank's"],
)
def test_quiet_of_errors(findings: Findings, section: TrainingRun) -> None:
    assert findings(CAUSE, section) == ()


@pytest.mark.parametrize(
    "held",
    [
        OWN,
        {**OWN, 0: {0: 40.0, 1: 30.0, 2: 30.0}},
        {**OWN, 0: {0: 40.0, 1: 0.5}},
        {0: {0: 0.5, 1: 0.5}},
        {**OWN, 0: {0: 40.0, 91: 0.5, 92: 0.5}},
    ],
    ids=["each its own", "spread on purpose", "one alone", "nothing elsewhere", "other processes"],
)
def test_quiet_of_live_runs(findings: Findings, held: Mapping[int, Mapping[int, float]]) -> None:
    assert findings(CAUSE, LOOK, gpus(held)) == ()


def printed(held: Mapping[int, Mapping[int, float]]) -> Gpus:
    return replace(gpus(held), printed=True)


def listed(held: Mapping[int, Mapping[int, float]]) -> GpuProcesses:
    rows = [
        ListedProcess(gpu=gpu, pid=pid, name="python", memory=int(memory * 2**30))
        for gpu, each in held.items()
        for pid, memory in each.items()
    ]
    return GpuProcesses(processes=tuple(rows))


def test_a_table_of_processes_that_touch_the_first_gpu(findings: Findings) -> None:
    table = {0: {0: 26.0, 1: 0.9, 2: 0.9}, 1: {1: 25.0}, 2: {2: 25.0}}
    (finding,) = findings(CAUSE, printed(table))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert "2 processes hold 1.8 GiB" in finding.because
    assert findings(CAUSE, gpus(table)) == ()
    (same,) = findings(CAUSE, listed(table))
    assert same.because == finding.because


def test_equal_contexts_in_a_list_of_one_gpu(findings: Findings) -> None:
    (finding,) = findings(CAUSE, listed({0: {10: 26.0, 11: 0.9, 12: 0.9}}))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.POSSIBLE)
    assert "2 processes hold 0.9 GiB each of GPU 0" in finding.because


@pytest.mark.parametrize(
    "table",
    [
        {0: {0: 26.0}, 1: {1: 25.0}, 2: {2: 25.0}},
        {0: {0: 26.0, 1: 0.9}, 1: {1: 25.0}},
        # A model that is spread, with a second such process.
        {0: {0: 1.0, 1: 1.0}, 1: {0: 20.0, 1: 20.0}},
        # Several processes of one GPU only, which were started apart, or differ.
        {0: {10: 26.0, 4011: 0.9, 4012: 0.9}},
        {0: {10: 26.0, 11: 0.9, 12: 0.4}},
        {0: {10: 0.9, 11: 0.9, 12: 0.9}},
    ],
)
def test_quiet_about_tables_of_other_processes(
    findings: Findings, table: Mapping[int, Mapping[int, float]]
) -> None:
    assert findings(CAUSE, printed(table)) == ()
    assert findings(CAUSE, listed(table)) == ()
