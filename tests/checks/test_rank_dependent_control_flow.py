from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ddoctor import engine
from ddoctor.evidence.flight_records import FlightRecords
from ddoctor.evidence.frames import Block
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.script import Script
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.source_facts import SourceOwnSkip
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankEnding
from ddoctor.models import Confidence, Severity
from ddoctor.script.reader import read
from tests.conftest import Findings
from tests.flight_records import call, recorded, records, unseen
from tests.live_look import block, in_collective, in_reduction, look, moving, standing
from tests.source_calls import WRAPS
from tests.training_run import ALL_REDUCE, ENGINE, echoing, ending, raised, run, user
from tests.training_steps import USUAL, steps

CAUSE = "rank-dependent-control-flow"
REDUCTION = "DDP's gradient reduction"


def waits(rank: int, doing: str, line: int, **fields: Any) -> RankEnding:
    inner = ALL_REDUCE if doing == "all_reduce" else ENGINE
    return ending(
        rank, "hung", doing=doing, doing_seconds=60.0, stack=(user(line), inner), **fields
    )


def test_all_wait_in_different_collectives(findings: Findings) -> None:
    section = run(
        waits(0, "all_reduce", 50, collectives=41), waits(1, REDUCTION, 40), waits(2, REDUCTION, 40)
    )
    (finding,) = findings(CAUSE, section)
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert (
        "rank 0 in all_reduce at train.py:50 in main (collective 41 of the script) and "
        "ranks 1-2 in DDP's gradient reduction at train.py:40 in main; nothing moved for 60 s"
    ) in finding.because
    paste = finding.fixes[0].paste
    assert "line 50" in paste
    assert "line 40" in paste
    assert "# rank 2" not in paste


def test_the_same_collective_from_different_lines(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(waits(0, "all_reduce", 50), waits(1, "all_reduce", 60)))
    assert finding.confidence is Confidence.LIKELY


def test_the_line_of_the_loop_is_named_where_a_helper_calls(findings: Findings) -> None:
    """Both may wait in one helper, which two branches call."""

    def helped(rank: int, line: int) -> RankEnding:
        stack = (user(line), user(7, function="mean"), ALL_REDUCE)
        return ending(rank, "hung", doing="all_reduce", doing_seconds=60.0, stack=stack)

    (finding,) = findings(CAUSE, run(helped(0, 50), helped(1, 60)))
    assert "rank 0 in all_reduce at train.py:7 in mean, called at train.py:50" in finding.because
    assert "rank 1 in all_reduce at train.py:7 in mean, called at train.py:60" in finding.because
    assert findings(CAUSE, run(helped(0, 50), helped(1, 50))) == ()


def test_one_rank_fails_in_its_collective_and_another_hangs_elsewhere(findings: Findings) -> None:
    section = run(waits(0, "barrier", 50), echoing(1, doing="all_reduce"))
    (finding,) = findings(CAUSE, section)
    assert finding.confidence is Confidence.LIKELY
    assert "rank 1 in all_reduce at train.py:72" in finding.because
    # At the same line, or where both lost each other: a network may do that.
    assert findings(CAUSE, run(waits(0, "all_reduce", 72), echoing(1))) == ()
    assert findings(CAUSE, run(echoing(0, doing="barrier", line=50), echoing(1))) == ()


LATE = "unbound_buffer.cc:78] Timed out waiting 40000ms for recv operation to complete"


def lost(rank: int, doing: str, line: int, **fields: Any) -> RankEnding:
    """A rank whose call fails, as its peer is gone."""
    return echoing(rank, doing=doing, stack=(user(line), ALL_REDUCE), **fields)


def test_a_timeout_of_the_process_group_ends_what_hangs(findings: Findings) -> None:
    """Before ddoctor does."""
    waited = lost(0, "barrier", 50, message=LATE)
    (finding,) = findings(CAUSE, run(waited, lost(1, REDUCTION, 40)))
    assert "rank 0 in barrier at train.py:50" in finding.because
    assert "rank 1 in DDP's gradient reduction at train.py:40" in finding.because
    assert "nothing moved for 40 s" in finding.because


@pytest.mark.parametrize(
    "ranks",
    [
        # One that came too late to the same call; one that worked; one that died.
        (lost(0, "barrier", 50, message=LATE), lost(1, "barrier", 50)),
        (
            lost(0, "barrier", 50, message=LATE),
            raised(1, "RuntimeError", "no such file", line=40),
        ),
        (
            lost(0, "barrier", 50, message=LATE),
            ending(1, "killed", exit_code=-9, doing=REDUCTION),
        ),
        # None of them waited for that long: a network may lose them.
        (lost(0, "barrier", 50), lost(1, REDUCTION, 40)),
    ],
)
def test_quiet_about_timeouts_of_other_causes(
    findings: Findings, ranks: tuple[RankEnding, ...]
) -> None:
    assert findings(CAUSE, run(*ranks)) == ()


def test_a_call_without_a_line_is_one_kind_of_evidence(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(waits(0, "all_reduce", 50), ending(1, "hung", doing="wait")))
    assert finding.confidence is Confidence.LIKELY


def test_gloo_crashes_on_it_where_sizes_differ() -> None:
    words = "op.preamble.length <= op.nbytes. 64 vs 4. Received data size doesn't match"
    aborted = ending(0, "killed", exit_code=-6, printed=words, doing=REDUCTION)
    (finding,) = engine.examine(Evidence([run(aborted, echoing(1))]), "run").findings
    assert finding.cause == CAUSE
    assert (
        "rank 0 called DDP's gradient reduction, rank 1 called all_reduce at train.py:72"
    ) in finding.because
    assert finding.confidence is Confidence.LIKELY
    lined = replace(aborted, stack=(user(40), ENGINE))
    (finding,) = engine.examine(Evidence([run(lined, echoing(1))]), "run").findings
    assert finding.confidence is Confidence.CERTAIN


def test_the_handler_that_lets_a_rank_continue(findings: Findings) -> None:
    """In the same finding as the collectives in which the ranks met."""
    handler = SourceLine(file="train.py", line=60, text="except KeyError:")
    script = Script(files=("train.py",), own_catches=(handler,))
    words = "op.preamble.length <= op.nbytes. 64 vs 4. Received data size doesn't match"
    aborted = ending(0, "killed", exit_code=-6, printed=words, doing=REDUCTION)
    found = findings(CAUSE, run(aborted, echoing(1)), script)
    assert found[0].severity is Severity.ERROR
    assert "train.py:60 (`except KeyError:`) lets a rank continue" in found[0].because
    hung = findings(CAUSE, run(waits(0, "barrier", 50), waits(1, "all_reduce", 60)), script)
    assert "train.py:60 (`except KeyError:`) lets a rank continue" in hung[0].because


def test_what_torch_says_in_debug_mode(findings: Findings) -> None:
    # A rank names its own collective rightly, and another's without a tensor not always.
    one = "Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=0OpType=BARRIER)"
    two = (
        "Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=0, OpType=ALLREDUCE, "
        "TensorShape=[2, 3], TensorDtypes=Float, TensorDeviceTypes=x)"
    )
    section = run(
        raised(0, "RuntimeError", f"{one}, but {two.replace('ALLREDUCE', 'SCATTER')}."),
        raised(1, "RuntimeError", f"{two}, but {one.replace('BARRIER', 'REDUCE')}.", line=80),
    )
    (finding,) = findings(CAUSE, section)
    assert (
        "rank 0 called barrier at train.py:71 in main, "
        "rank 1 called allreduce of [2, 3] Float at train.py:80"
    ) in finding.because


def test_quiet_where_all_wait_at_the_same_line(findings: Findings) -> None:
    assert findings(CAUSE, run(waits(0, "all_reduce", 50), waits(1, "all_reduce", 50))) == ()


def in_groups(*groups: tuple[int, int]) -> Sequence[RankEnding]:
    """Ranks at one line, each in a group with a name and a size."""
    return [
        waits(rank, "all_reduce", 50, group=name, group_size=size)
        for rank, (name, size) in enumerate(groups)
    ]


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ([(7, 2), (8, 2)], "rank 0 and rank 1"),
        ([(7, 2), (0, 0)], "rank 0 and rank 1"),
        ([(7, 3), (8, 3), (7, 3)], "ranks 0, 2 and rank 1"),
    ],
)
def test_one_line_in_groups_that_are_not_complete(
    findings: Findings, groups: list[tuple[int, int]], told: str
) -> None:
    (finding,) = findings(CAUSE, run(*in_groups(*groups)))
    assert finding.confidence is Confidence.CERTAIN
    assert (
        f"all ranks wait in all_reduce at train.py:50 in main, but in 2 process groups: {told}"
        in (finding.because)
    )
    assert "same order" in finding.fixes[0].summary


@pytest.mark.parametrize(
    "groups",
    [
        [(7, 2), (7, 2)],
        [(0, 0), (0, 0)],
        # Two halves, each complete.
        [(7, 2), (7, 2), (8, 2), (8, 2)],
        [(7, 1), (8, 1)],
    ],
)
def test_quiet_where_each_group_is_complete(
    findings: Findings, groups: list[tuple[int, int]]
) -> None:
    assert findings(CAUSE, run(*in_groups(*groups))) == ()


def test_quiet_where_one_rank_is_somewhere_else(findings: Findings) -> None:
    stuck = ending(1, "hung", doing="forward", stack=(user(30),))
    assert findings(CAUSE, run(waits(0, "all_reduce", 50), stuck)) == ()


def test_quiet_where_one_rank_has_left(findings: Findings) -> None:
    for outcome in ("finished", "failed", "killed"):
        section = run(waits(0, "all_reduce", 50), waits(1, REDUCTION, 40), ending(2, outcome))
        assert findings(CAUSE, section) == ()


def test_quiet_where_nothing_hung(findings: Findings) -> None:
    assert findings(CAUSE, run(ending(0, "stopped"), ending(1, "stopped"))) == ()


def test_quiet_on_other_shapes_in_the_same_collective(findings: Findings) -> None:
    words = "op.preamble.length <= op.nbytes. 8 vs 4."
    aborted = ending(0, "killed", exit_code=-6, printed=words, doing="all_reduce")
    assert findings(CAUSE, run(aborted, echoing(1))) == ()


def test_live_ranks_that_wait_in_different_calls(findings: Findings) -> None:
    (finding,) = findings(
        CAUSE, look(in_collective(0, "barrier", 50), in_collective(1, "all_reduce", 51))
    )
    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.CERTAIN
    assert "rank 0 in barrier at train.py:50 in train" in finding.because
    assert "rank 1 in all_reduce at train.py:51 in train" in finding.because


def test_live_ranks_at_the_same_call_of_different_lines(findings: Findings) -> None:
    (finding,) = findings(
        CAUSE, look(in_collective(0, "barrier", 50), in_collective(1, "barrier", 60))
    )
    assert finding.confidence is Confidence.LIKELY


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        # All at one place; one of them outside of collectives; too short a look.
        look(in_collective(0, "barrier", 50), in_collective(1, "barrier", 50)),
        look(in_reduction(0), standing(1, "rest", user(30))),
        look(in_collective(0, "barrier", 50), in_collective(1, "all_reduce", 51), seconds=2.0),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()


APART = look(in_collective(0, "barrier", 50), in_collective(1, "all_reduce", 51))
OTHERS = recorded(
    records(0, call(40, over=True), call(41, "barrier")),
    records(1, call(40, over=True), call(41)),
)


@pytest.mark.parametrize("live", [APART, unseen(APART), unseen(APART, main_cpu=9.9)])
def test_what_was_recorded(findings: Findings, live: LiveLook) -> None:
    (finding,) = findings(CAUSE, live, OTHERS)
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    places = (" at train.py:50 in train", " at train.py:51 in train") if live is APART else ("", "")
    assert (
        "in collective 41 of the group nccl 0 (default_pg), "
        f"rank 0 called barrier{places[0]}, rank 1 called all_reduce of 1000 Float{places[1]}"
    ) in finding.because
    assert len(finding.fixes) == (2 if live is APART else 1)


def test_the_first_in_which_they_differ_is_named(findings: Findings) -> None:
    """gloo lets the one through that brings less, and what comes then is shifted."""
    told = recorded(
        records(0, call(40, "barrier", over=True), call(41)),
        records(1, call(40, over=True), call(41, "barrier")),
    )
    (finding,) = findings(CAUSE, APART, told)
    assert "collective 40" in finding.because


def test_the_same_operation_of_two_lines(findings: Findings) -> None:
    live = look(in_collective(0, "all_reduce", 50), in_collective(1, "all_reduce", 60))
    told = recorded(records(0, call(41)), records(1, call(41, elements=8)))
    (finding,) = findings(CAUSE, live, told)
    assert finding.confidence is Confidence.CERTAIN
    assert "all_reduce of 8 Float at train.py:60" in finding.because


@pytest.mark.parametrize(
    ("live", "told"),
    [
        (look(moving(0), moving(1)), OTHERS),
        # Nobody saw it, and something was called a moment ago; or one may work.
        (
            unseen(APART),
            recorded(records(0, call(41, "barrier"), idle=1.0), records(1, call(41), idle=1.0)),
        ),
        (
            unseen(APART, main_cpu=9.9),
            recorded(records(0, call(41, "barrier")), records(1, call(41, over=True))),
        ),
        # One of them has not come yet; what differs is over; it was another size.
        (unseen(APART), recorded(records(0, call(41, "barrier")), records(1, call(40, over=True)))),
        (
            unseen(APART),
            recorded(records(0, call(41, "barrier", over=True)), records(1, call(41, over=True))),
        ),
        (unseen(APART), recorded(records(0, call(41)), records(1, call(41, elements=8)))),
    ],
)
def test_quiet_where_records_do_not_tell(
    findings: Findings, live: LiveLook, told: FlightRecords
) -> None:
    assert findings(CAUSE, live, told) == ()


SPIKE = block(49, 51, "if value > 4 * mean:")
EPOCH = block(30, 45, "for batch in loader:")


def decided(findings: Findings, *ranks: RankEnding) -> str:
    """The fix that makes the ranks agree."""
    (finding,) = findings(CAUSE, run(*ranks))
    return next(one.paste for one in finding.fixes if one.language == "python")


def test_the_fix_reduces_the_test_that_separates_the_ranks(findings: Findings) -> None:
    inside = waits(0, "all_reduce", 50, within=(SPIKE,))
    fix = decided(findings, inside, waits(1, REDUCTION, 60))
    assert "float(value > 4 * mean)" in fix
    assert "# instead of the test at train.py:49" in fix
    (finding,) = findings(CAUSE, run(inside, waits(1, REDUCTION, 60)))
    assert finding.fixes[0].paste == fix
    assert "only rank 0 is inside `if value > 4 * mean:` (train.py:49)" in finding.because


def test_the_fix_leaves_together_a_loop_that_a_rank_may_end(findings: Findings) -> None:
    early = replace(EPOCH, decides=True)
    fix = decided(findings, waits(0, REDUCTION, 40, within=(early,)), waits(1, "barrier", 60))
    assert "break" in fix


@pytest.mark.parametrize("around", [(), (EPOCH,), (block(49, 51, "if all_of(value, ("),)])
def test_the_fix_knows_no_test(findings: Findings, around: tuple[Block, ...]) -> None:
    """Nor does it name one that the script does not have."""
    fix = decided(findings, waits(0, REDUCTION, 40, within=around), waits(1, "barrier", 60))
    assert "float(condition)" in fix
    assert "isfinite" not in fix


def test_the_fix_reduces_the_test_that_skips_a_backward_pass(
    findings: Findings, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "def main():\n"
        "    for batch in loader:\n"
        "        loss = model(batch)\n"
        "        if not torch.isfinite(loss):\n"
        "            continue\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "main()\n"
    )
    source = read(script, ())
    apart = run(waits(0, REDUCTION, 6), waits(1, "barrier", 9))
    pastes = [fix.paste for one in findings(CAUSE, apart, source) for fix in one.fixes]
    assert any("float(not torch.isfinite(loss))" in paste for paste in pastes)
    elsewhere = run(waits(0, REDUCTION, 60), waits(1, "barrier", 9))
    pastes = [fix.paste for one in findings(CAUSE, elsewhere, source) for fix in one.fixes]
    assert any("float(condition)" in paste for paste in pastes)


def test_the_fix_reduces_the_test_by_which_a_rank_comes_to_its_collective(
    findings: Findings, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "def main():\n"
        "    for batch in loader:\n"
        "        loss = model(batch['x'])\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "        if (batch['y'] == 3).sum() > 0:\n"
        "            dist.all_reduce(counts)\n"
        "main()\n"
    )
    source = read(script, ())
    apart = run(waits(0, "all_reduce", 9), waits(1, REDUCTION, 6))
    pastes = [fix.paste for one in findings(CAUSE, apart, source) for fix in one.fixes]
    assert any("# instead of the test at train.py, before line 9" in paste for paste in pastes)
    assert any("float((batch['y'] == 3).sum() > 0)" in paste for paste in pastes)
    # Both have come to it, or none: another branch parts them.
    for other in (
        run(waits(0, "all_reduce", 9), waits(1, "barrier", 9)),
        run(waits(0, "all_reduce", 12), waits(1, REDUCTION, 6)),
    ):
        pastes = [fix.paste for one in findings(CAUSE, other, source) for fix in one.fixes]
        assert not any("before line 9" in paste for paste in pastes)


def reducing(*per_rank: tuple[int, ...]) -> Steps:
    """Steps whose ranks reduce gradients in so many backward passes."""
    found = steps(*[USUAL] * len(per_rank), count=len(per_rank[0]) or 12)
    each = zip(found.ranks, per_rank, strict=True)
    return replace(
        found, ranks=tuple(replace(rank, synced_backwards=counts) for rank, counts in each)
    )


def test_a_rank_that_reduces_in_each_pass(findings: Findings) -> None:
    (finding,) = findings(CAUSE, reducing((1,) * 12, (4,) * 12, (4,) * 12))
    assert finding.severity is Severity.ERROR
    assert "in 1 backward pass of a step on rank 0 and in 4 on rank 1" in finding.because
    assert "no_sync" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "counts",
    [
        [(1,) * 12, (1,) * 12],
        [(4,) * 12, (4,) * 12],
        [(1, 4) * 6, (1, 4) * 6],
        [(1,) * 12, (1,) * 11 + (2,)],
        [(1,) * 2, (4,) * 2],
        [(), ()],
        [(4,) * 12],
    ],
    ids=["once", "each pass", "in turns", "a last step", "few steps", "not seen", "one rank"],
)
def test_quiet_where_all_ranks_reduce_alike(
    findings: Findings, counts: list[tuple[int, ...]]
) -> None:
    assert findings(CAUSE, reducing(*counts)) == ()


LEAVES = SourceLine(file="train.py", line=30, text="break")


def leaving(**facts: Any) -> Script:
    return Script(files=("train.py",), calls=(WRAPS,), **facts)


@pytest.mark.parametrize(("ends", "what"), [(True, "the loop over batches"), (False, "a step")])
def test_a_rank_that_leaves_by_its_own_batch(findings: Findings, ends: bool, what: str) -> None:
    skip = SourceOwnSkip(at=LEAVES, test="loss.item() < 0.1", ends=ends)
    (finding,) = findings(CAUSE, leaving(own_skips=(skip,)))
    assert finding.severity is Severity.WARNING
    assert f"leaves {what} at train.py:30 (`break`) if `loss.item() < 0.1`" in finding.because


def test_a_rank_that_goes_on_after_its_own_error(findings: Findings) -> None:
    (finding,) = findings(CAUSE, leaving(own_catches=(LEAVES,)))
    assert finding.severity is Severity.NOTE


def test_quiet_about_ends_of_all_ranks(findings: Findings) -> None:
    assert findings(CAUSE, leaving()) == ()
