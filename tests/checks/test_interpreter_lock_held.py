from __future__ import annotations

import msgspec
import pytest

from ddoctor import engine
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import LiveLook, LiveRank
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.threads import ScriptThread, ScriptThreads
from ddoctor.evidence.training import RankHost, RankUse
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.live_look import TRAINING, WAITING, look, moving, standing
from tests.training_steps import USUAL, steps, with_more

CAUSE = "interpreter-lock-held"
ON_CPU = 0.1
"""Seconds of a usual step in which the main thread is on a CPU."""
SLOW = with_more("optimizer", 0.06, with_more("forward", 0.04))
"""A tenth of a second in which it is not."""


def threads(*cpus: float, line: int = 8) -> ScriptThreads:
    """One thread of each rank, which uses so many CPUs."""
    place = Frame(file="train.py", line=line, function="run", text="json.dumps(rows)", of_user=True)
    return ScriptThreads(
        threads=tuple(
            ScriptThread(rank=rank, place=place, cpus=one, seconds=20.0)
            for rank, one in enumerate(cpus)
            if one
        )
    )


def use(waited: float | None = 0.02, *, torch_threads: int = 1) -> RankUse:
    return RankUse(
        hosts=tuple(
            RankHost(
                rank=rank,
                host="node-0",
                local_ranks=2,
                threads=torch_threads,
                affinity=tuple(range(4)),
                host_cpus=4,
                waited=waited,
            )
            for rank in (0, 1)
        ),
        flags=(),
    )


def test_a_thread_of_each_rank(findings: Findings) -> None:
    section = steps(SLOW, SLOW, cpu=(ON_CPU, ON_CPU))
    (finding,) = findings(CAUSE, section, threads(0.7, 0.8), use())
    assert finding.severity is Severity.WARNING
    assert finding.where.ranks == ()
    assert "train.py:8 in run (`json.dumps(rows)`)" in finding.because
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx((0.1 - 0.02 * section.step) / section.step, abs=0.02)


def test_a_thread_of_one_rank_explains_why_the_other_waits() -> None:
    section = steps(SLOW, USUAL, cpu=(ON_CPU, ON_CPU))
    report = engine.examine(Evidence([section, threads(0.8), use()]), "run")
    first = report.findings[0]
    assert (first.cause, first.where.ranks) == (CAUSE, (0,))
    assert "straggler-rank" in first.consequences


def test_several_threads_at_one_line(findings: Findings) -> None:
    section = steps(SLOW, SLOW, cpu=(ON_CPU, ON_CPU))
    few = threads(0.2, 0.2).threads
    assert findings(CAUSE, section, ScriptThreads(threads=few), use()) == ()
    assert findings(CAUSE, section, ScriptThreads(threads=few * 3), use())


def test_a_smaller_cost_is_a_note(findings: Findings) -> None:
    slow = with_more("forward", 0.02)
    (finding,) = findings(
        CAUSE, steps(slow, slow, cpu=(ON_CPU, ON_CPU)), threads(0.5, 0.5), use(0.0)
    )
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize(
    ("section", "other", "known"),
    [
        # The main thread is on a CPU: the thread works where it gives the interpreter away.
        (steps(SLOW, SLOW, cpu=(ON_CPU + 0.09,) * 2), threads(0.9, 0.9), use()),
        # It waits for a CPU.
        (steps(SLOW, SLOW, cpu=(ON_CPU,) * 2), threads(0.9, 0.9), use(0.45)),
        # The thread is idle.
        (steps(SLOW, SLOW, cpu=(ON_CPU,) * 2), threads(0.02, 0.02), use()),
        # The time is lost at the loader, or in other work of the loop.
        (
            steps(*[with_more("loader", 0.1)] * 2, cpu=(ON_CPU,) * 2),
            threads(0.9, 0.9),
            use(),
        ),
        (steps(*[with_more("rest", 0.1)] * 2, cpu=(ON_CPU,) * 2), threads(0.9, 0.9), use()),
        # Torch's own threads wait for each other.
        (steps(SLOW, SLOW, cpu=(ON_CPU,) * 2), threads(0.9, 0.9), use(torch_threads=4)),
        # On a GPU, the passes take the time of the device.
        (steps(SLOW, SLOW, cpu=(ON_CPU,) * 2, device="cuda"), threads(0.9, 0.9), use()),
        (steps(SLOW, SLOW), threads(0.9, 0.9), use()),
        (steps(SLOW, SLOW, cpu=(ON_CPU,) * 2), threads(0.9, 0.9), use(None)),
        (steps(SLOW, SLOW, cpu=(ON_CPU,) * 2, count=9), threads(0.9, 0.9), use()),
    ],
)
def test_quiet(findings: Findings, section: Steps, other: ScriptThreads, known: RankUse) -> None:
    assert findings(CAUSE, section, other, known) == ()


COMPUTES = {"forward": 40, "backward": 30, "optimizer": 20, "loader-wait": 10}


REDUCES = {"forward": 30, "backward-or-wait": 65, "optimizer": 5}
OTHER = {"forward": 15, "backward-or-wait": 80, "optimizer": 5}


def test_a_pass_that_may_wait_for_others_counts_where_the_others_are_faster(
    findings: Findings,
) -> None:
    section = look(moving(0, REDUCES, asleep=0.45), moving(1, OTHER, asleep=0.6))
    (finding,) = findings(CAUSE, section, threads(0.6))
    assert finding.where.ranks == (0,)
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(0.45)


@pytest.mark.parametrize(
    ("other", "busy"), [(REDUCES, threads(0.6)), (OTHER, threads(0.6, 0.6)), (OTHER, threads(0.1))]
)
def test_quiet_where_it_may_wait_for_others(
    findings: Findings, other: dict[str, int], busy: ScriptThreads
) -> None:
    section = look(moving(0, REDUCES, asleep=0.45), moving(1, other, asleep=0.6))
    assert findings(CAUSE, section, busy) == ()


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("rows.append(self.inbox.get(block=False))", "let it sleep"),
        ("item = inbox.get_nowait()", "let it sleep"),
        ("item = inbox.get()", "do its work in a process"),
    ],
)
def test_a_thread_that_asks_all_the_time_is_to_wait(
    findings: Findings, text: str, first: str
) -> None:
    (one,) = threads(0.7).threads
    asking = msgspec.structs.replace(one, place=msgspec.structs.replace(one.place, text=text))
    section = look(moving(0, COMPUTES, asleep=0.6), moving(1, WAITING, asleep=0.8))
    (finding,) = findings(CAUSE, section, ScriptThreads(threads=(asking,)))
    assert finding.fixes[0].summary.startswith(first)


def test_in_a_live_run(findings: Findings) -> None:
    section = look(moving(0, COMPUTES, asleep=0.6), moving(1, WAITING, asleep=0.8))
    (finding,) = findings(CAUSE, section, threads(0.7))
    assert (finding.severity, finding.where.ranks) == (Severity.WARNING, (0,))
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(0.5)


def crowded(late: int) -> LiveLook:
    """One rank computes for 70 % of 10 s, 4 of these on a CPU; the other waits for it."""
    shares = {"forward": 28, "optimizer": 42, "backward-or-wait": 30}
    computes = moving(late, shares, asleep=0.35)
    waits = moving(1 - late, {"forward": 25, "backward-or-wait": 75}, asleep=0.8)
    return look(msgspec.structs.replace(computes, main_cpu_seconds=4.0), waits)


def test_a_thread_that_takes_a_cpu_from_the_rank_that_is_late(findings: Findings) -> None:
    (finding,) = findings(CAUSE, crowded(0), threads(0.9))
    assert finding.where.ranks == (0,)
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(0.3)


@pytest.mark.parametrize(("late", "cpus"), [(1, 0.9), (0, 0.4)])
def test_quiet_where_another_rank_is_late(findings: Findings, late: int, cpus: float) -> None:
    assert findings(CAUSE, crowded(late), threads(cpus)) == ()


@pytest.mark.parametrize(
    ("rank", "other"),
    [
        (moving(0, COMPUTES, asleep=0.1), threads(0.9)),
        (moving(0, COMPUTES, asleep=0.6), threads(0.05)),
        # It sleeps where it waits: for batches, for others, in the engine of a GPU.
        (moving(0, {"forward": 20, "loader-wait": 80}, asleep=0.8), threads(0.9)),
        (moving(0, WAITING, asleep=0.8), threads(0.9)),
        (moving(0, TRAINING, asleep=0.5), threads(0.9)),
        (moving(0, {"forward": 10, "rest": 90}, asleep=0.8), threads(0.9)),
        (standing(0, "forward"), threads(0.9)),
        (msgspec.structs.replace(moving(0, COMPUTES, asleep=0.6), on_gpu=True), threads(0.9)),
        (moving(0, COMPUTES, asleep=0.6), ScriptThreads(threads=())),
    ],
)
def test_quiet_in_a_live_run(findings: Findings, rank: LiveRank, other: ScriptThreads) -> None:
    assert findings(CAUSE, look(rank, moving(1)), other) == ()
