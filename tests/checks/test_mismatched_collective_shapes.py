from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace

from ddoctor import engine
from ddoctor.analysis.collective_mismatch import same_call
from ddoctor.evidence.flight_records import FlightRecords
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.section import Evidence
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.flight_records import call, recorded, records, unseen
from tests.live_look import block, in_collective, in_reduction, look, moving
from tests.training_run import RESET, echoing, ending, raised, run

CAUSE = "mismatched-collective-shapes"
REDUCTION = "DDP's gradient reduction"

# As torch 2.13 with gloo prints it before it aborts.
GLOO = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] "
    "op.preamble.length <= op.nbytes. 8 vs 4. Received data size doesn't match expected size. Is "
    "there a distributed collective mismatch in your code?"
)


def fingerprint(rank: int, shape: str, kind: str = "Float", operation: str = "ALLREDUCE") -> str:
    return (
        f"Rank {rank} is running collective: CollectiveFingerPrint(SequenceNumber=0, "
        f"OpType={operation}, TensorShape=[{shape}], TensorDtypes={kind}, TensorDeviceTypes="
        "TensorOptions(dtype=float (default), device=cpu))"
    )


def detail(*told: str) -> str:
    return f"Detected mismatch between collectives on ranks. {', but '.join(told)}."


def watchdog(number: int, elements: int, operation: str = "ALLREDUCE") -> str:
    return (
        f"[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, "
        f"OpType={operation}, NumelIn={elements}, NumelOut={elements}, Timeout(ms)=600000) ran for "
        "600004 milliseconds before timing out."
    )


def test_a_rank_whose_collective_is_not_known_counts_for_nothing(findings: Findings) -> None:
    """Between two steps the tape has no collective; the stack alone says that it waited."""
    aborted = ending(0, "killed", exit_code=-6, printed=GLOO, doing="all_reduce")
    (finding,) = findings(CAUSE, run(aborted, echoing(1, doing="rest")))
    assert "rest" not in finding.because


def test_the_source_of_a_broadcast_has_gone_on(findings: Findings) -> None:
    """Its data did not fit, and it waits in DDP's reduction already."""
    aborted = ending(1, "killed", exit_code=-6, printed=GLOO, doing="broadcast", collectives=7)
    source = echoing(0, doing=REDUCTION, collectives=7, recent=("all_reduce", "broadcast"))
    (finding,) = findings(CAUSE, run(source, aborted))
    assert "4 at most: rank 1 called broadcast" in finding.because
    assert "rank 0 called" not in finding.because
    # Later than that, in the next collective.
    later = replace(source, doing="all_reduce", collectives=8)
    assert len(findings(CAUSE, run(later, aborted))) == 1
    # It called another one, or not as many, or that is not known.
    for other in (
        replace(source, recent=("broadcast", "all_reduce")),
        replace(source, collectives=6),
        replace(source, recent=()),
    ):
        assert findings(CAUSE, run(other, aborted)) == ()


def test_what_gloo_says_before_it_aborts(findings: Findings) -> None:
    aborted = ending(0, "killed", exit_code=-6, printed=GLOO, doing="all_reduce")
    (finding,) = findings(CAUSE, run(aborted, echoing(1)))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.LIKELY)
    assert (
        "rank 0 received 8 bytes and expected 4 at most: rank 0 called all_reduce, "
        "rank 1 called all_reduce at train.py:72 in main"
    ) in finding.because
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun … train.py --data x" in finding.fixes[0].paste


def test_it_explains_the_death_and_its_echo() -> None:
    aborted = ending(0, "killed", exit_code=-6, printed=GLOO, doing="all_reduce")
    (finding,) = engine.examine(Evidence([run(aborted, echoing(1))]), "run").findings
    assert finding.cause == CAUSE
    assert set(finding.consequences) == {"dead-rank", "first-failure-masked"}


@pytest.mark.parametrize(
    ("one", "two"), [(("8", "Float"), ("4", "Float")), (("8", "Float"), ("8", "Double"))]
)
def test_what_torch_says_in_debug_mode(
    findings: Findings, one: tuple[str, str], two: tuple[str, str]
) -> None:
    message = detail(fingerprint(1, *one), fingerprint(0, *two))
    section = run(raised(0, "RuntimeError", message), raised(1, "RuntimeError", message))
    (finding,) = findings(CAUSE, section)
    assert finding.confidence is Confidence.CERTAIN
    assert f"rank 0 called allreduce of [{two[0]}] {two[1]} at train.py:71" in finding.because
    assert f"rank 1 called allreduce of [{one[0]}] {one[1]} at train.py:71" in finding.because


def test_what_the_watchdog_of_nccl_says(findings: Findings) -> None:
    ranks = (ending(n, "killed", exit_code=-6, printed=watchdog(7, 4 + n)) for n in range(2))
    (finding,) = findings(CAUSE, run(*ranks))
    assert (
        "rank 0 called allreduce of 4 elements, rank 1 called allreduce of 5 elements"
    ) in finding.because


@pytest.mark.parametrize(
    "message",
    [
        "[1]: params[0] in this process with sizes [4, 9] appears not to match sizes of the same "
        "param in process 0.",
        "DDP expects same model across all ranks, but Rank 0 has 4 params, while rank 1 has "
        "inconsistent 6 params.",
    ],
)
def test_models_that_differ(findings: Findings, message: str) -> None:
    (finding,) = findings(CAUSE, run(echoing(0), raised(1, "RuntimeError", message)))
    assert "different models: DDP on rank 1 says" in finding.because
    assert "at train.py:71" in finding.because


def test_the_fix_pads(findings: Findings) -> None:
    aborted = ending(0, "killed", exit_code=-6, printed=GLOO, doing="all_reduce")
    (finding,) = findings(CAUSE, run(aborted, echoing(1)))
    scope: dict[str, Any] = {"torch": torch, "tensor": torch.ones(3, 2)}
    store = torch._C._distributed_c10d.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        exec(finding.fixes[1].paste, scope)
    finally:
        dist.destroy_process_group()
    assert scope["tensor"].equal(torch.ones(3, 2))


def test_quiet_where_the_collectives_differ_and_not_the_shapes(findings: Findings) -> None:
    aborted = ending(0, "killed", exit_code=-6, printed=GLOO, doing="DDP's gradient reduction")
    assert findings(CAUSE, run(aborted, echoing(1))) == ()
    message = detail(fingerprint(1, "8"), fingerprint(0, "8", operation="BROADCAST"))
    assert findings(CAUSE, run(raised(0, "RuntimeError", message))) == ()


@pytest.mark.parametrize(
    "words",
    [
        # Different collectives of one rank after the other: a rank is late.
        (watchdog(7, 4), watchdog(8, 9)),
        (watchdog(7, 4), watchdog(7, 4)),
        # These may be uneven.
        (watchdog(7, 4, "ALLTOALL_BASE"), watchdog(7, 5, "ALLTOALL_BASE")),
    ],
)
def test_quiet_on_a_plain_timeout(findings: Findings, words: tuple[str, str]) -> None:
    ranks = (ending(n, "killed", exit_code=-6, printed=one) for n, one in enumerate(words))
    assert findings(CAUSE, run(*ranks)) == ()


def test_quiet_on_every_other_failure(findings: Findings) -> None:
    assert findings(CAUSE, run(echoing(0), raised(1, "RuntimeError", "shape mismatch"))) == ()
    assert findings(CAUSE, run(echoing(0, RESET), ending(1, "killed", exit_code=-9))) == ()


def test_quiet_where_nothing_failed(findings: Findings) -> None:
    assert findings(CAUSE, run(ending(0, "stopped"), ending(1, "stopped"))) == ()


STEPS = (block(10, 30, "for batch in loader:"),)


def test_one_has_left_what_another_waits_in(findings: Findings) -> None:
    behind, ahead = (
        in_collective(1, "all_reduce", 20, STEPS),
        in_collective(0, "barrier", 22, STEPS),
    )
    (finding,) = findings(CAUSE, look(ahead, behind))
    assert finding.where.ranks == (1,)
    assert "rank 1 (pid 101 on node-0) waits in all_reduce at train.py:20" in finding.because
    assert "rank 0 waits in barrier at train.py:22" in finding.because
    assert "at train.py:20" in finding.fixes[1].summary


BRANCH = (*STEPS, block(19, 21, "if bad(loss):"))


@pytest.mark.parametrize(
    "live",
    [
        # They stand together; or in branches, past which a way leads, also within the line.
        look(in_collective(0, "barrier", 22, STEPS), in_collective(1, "barrier", 22, STEPS)),
        look(in_collective(0, "barrier", 22, STEPS), in_collective(1, "all_reduce", 20, BRANCH)),
        look(
            in_collective(0, "barrier", 22, STEPS),
            in_collective(1, "all_reduce", 20, STEPS, text="bad and dist.all_reduce(loss)"),
        ),
        # In the backward pass it is not known for which of the gradients.
        look(in_collective(0, "barrier", 42, STEPS), in_reduction(1, STEPS)),
        look(in_collective(0, "barrier", 22, STEPS), moving(1)),
        # The others are elsewhere.
        look(in_collective(0, "barrier", 22, STEPS)),
    ],
)
def test_quiet_where_a_branch_may_lead_past_it(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()


WAITING = look(*(in_collective(rank, "all_reduce", 20, STEPS) for rank in range(3)))
"""Of which no stack tells that anything differs."""
SHORTER = recorded(
    records(0, call(40, over=True), call(41)),
    records(1, call(40, over=True), call(41, elements=10)),
    records(2, call(40, over=True), call(41)),
    nccl=("#0-0 (1) MISMATCH",),
)


@pytest.mark.parametrize("live", [WAITING, unseen(WAITING), unseen(WAITING, main_cpu=9.9)])
def test_what_was_recorded(findings: Findings, live: LiveLook) -> None:
    (finding,) = findings(CAUSE, live, SHORTER)
    at = " at train.py:20 in train" if live is WAITING else ""
    assert finding.severity is Severity.ERROR
    assert finding.confidence is (Confidence.CERTAIN if at else Confidence.LIKELY)
    assert (
        f"in collective 41 of the group nccl 0 (default_pg), ranks 0, 2 called all_reduce of 1000 "
        f"Float{at}, rank 1 called all_reduce of 10 Float{at}"
    ) in finding.because
    assert [row.value for row in finding.evidence if row.name == "NCCL says"] == list(SHORTER.nccl)


def test_a_file_may_be_of_another_job(findings: Findings) -> None:
    dumped = recorded(
        records(0, call(41), told_by="dump file"),
        records(1, call(41, elements=10), told_by="dump file"),
    )
    (finding,) = findings(CAUSE, WAITING, dumped)
    assert finding.confidence == Confidence.LIKELY


def test_gloo_lets_the_one_through_that_brought_less(findings: Findings) -> None:
    behind, ahead = (
        in_collective(1, "all_reduce", 20, STEPS),
        in_collective(0, "barrier", 22, STEPS),
    )
    told = recorded(
        records(0, call(41, elements=10, over=True), call(42, "barrier")),
        records(1, call(41)),
    )
    (finding,) = findings(CAUSE, look(ahead, behind), told)
    assert finding.confidence == Confidence.CERTAIN
    assert (
        "rank 0 called all_reduce of 10 Float, rank 1 called all_reduce of 1000 Float at"
    ) in finding.because


def test_the_hosts_of_a_job_together(findings: Findings) -> None:
    parts = [
        (look(in_collective(rank, "all_reduce", 20), host=f"node-{rank}"), told)
        for rank, told in enumerate([records(0, call(41)), records(1, call(41, elements=10))])
    ]
    sections = [
        one
        for number, (live, told) in enumerate(parts)
        for one in (live, recorded(told, host=f"node-{number}"))
    ]
    (finding,) = findings(CAUSE, *sections)
    assert "rank 1 called all_reduce of 10 Float" in finding.because


MOVING = look(*(moving(rank) for rank in range(3)))


@pytest.mark.parametrize(
    ("live", "told"),
    [
        # A run that gets on has collectives that are not over, and not the same on all ranks.
        (MOVING, SHORTER),
        (MOVING, recorded(*(records(one, call(40 + one), idle=0.1) for one in range(3)))),
        # Or it was not seen, and something was called a moment ago; or the file is an old one.
        (
            unseen(WAITING),
            recorded(*(records(one, call(41, elements=1 + one), idle=0.5) for one in range(3))),
        ),
        (
            unseen(WAITING),
            recorded(*(records(one, call(41, elements=1 + one), age=900) for one in range(3))),
        ),
        # Nothing is known of one of them.
        (unseen(WAITING), recorded(*(records(one, call(41, elements=1 + one)) for one in (0, 1)))),
        # All brought the same, or need not; or it is over, and did no harm.
        (WAITING, recorded(*(records(one, call(41)) for one in range(3)))),
        (
            WAITING,
            recorded(*(records(one, call(41, "all_to_all", 1 + one)) for one in range(3))),
        ),
        (
            WAITING,
            recorded(*(records(one, call(41, elements=1 + one, over=True)) for one in range(3))),
        ),
        # In groups of their own.
        (
            WAITING,
            recorded(
                *(records(one, call(41, elements=1 + one), group=f"nccl {one}") for one in range(3))
            ),
        ),
        (WAITING, recorded()),
        # Of two lines: they took different branches.
        (
            look(in_collective(0, "all_reduce", 20), in_collective(1, "all_reduce", 30)),
            recorded(*(records(one, call(41, elements=1 + one)) for one in (0, 1))),
        ),
    ],
)
def test_quiet_where_records_do_not_tell(
    findings: Findings, live: LiveLook, told: FlightRecords
) -> None:
    assert findings(CAUSE, live, told) == ()


def test_a_rank_hangs_in_a_collective_that_the_others_have_left(findings: Findings) -> None:
    """gloo lets a rank go on that brought fewer elements."""
    behind = ending(1, "hung", doing="all_reduce", collectives=3, doing_seconds=30.0)
    gone_on = ending(0, "hung", doing=REDUCTION, collectives=3, recent=("barrier", "all_reduce"))
    (finding,) = findings(CAUSE, run(gone_on, behind))
    assert finding.where.ranks == (1,)
    assert "which rank 0 has already left" in finding.because
    assert findings("rank-dependent-control-flow", run(gone_on, behind)) == ()


@pytest.mark.parametrize(
    ("doing", "recent"),
    [
        # Rank 0 called another one, or fewer; the source of a broadcast waits for nobody.
        ("all_reduce", ("all_reduce", "barrier")),
        ("all_reduce", ()),
        ("broadcast", ("barrier", "broadcast")),
    ],
)
def test_quiet_where_the_others_need_not_have_been_there(
    findings: Findings, doing: str, recent: tuple[str, ...]
) -> None:
    behind = ending(1, "hung", doing=doing, collectives=3, doing_seconds=30.0)
    gone_on = ending(0, "hung", doing=REDUCTION, collectives=3, recent=recent)
    assert findings(CAUSE, run(gone_on, behind)) == ()


def test_shapes_that_a_damaged_log_shows() -> None:
    assert same_call("all_reduce(TensorShape=[3 10]) and all_reduce(TensorShape=[3, 20])")
    assert not same_call("all_reduce(TensorShape=[]) and broadcast(TensorShape=[3])")
