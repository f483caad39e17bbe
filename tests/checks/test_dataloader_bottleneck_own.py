"""Loops that make their batches themselves, without a DataLoader."""

from __future__ import annotations

import pytest

from ddoctor.evidence.frames import Frame, Origin
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.threads import ScriptThread, ScriptThreads
from ddoctor.models import Confidence
from tests.analysis.test_live_loop import STEP, at, rank
from tests.analysis.test_live_loop import origin as in_train
from tests.conftest import Findings
from tests.live_look import look
from tests.training_loaders import loader_with
from tests.training_run import user
from tests.training_steps import USUAL, every, lines, origin, steps, with_more

CAUSE = "dataloader-bottleneck"
FORWARD = ("forward", 20, "loss = model(batch)")
HEAD = ("rest", 10, "for batch in shards():")
TAKEN = (origin(10, gives=True),)
SLOW = with_more("rest", 0.05)
NONE = Loading(loaders=())


def test_on_all_ranks(findings: Findings) -> None:
    met = {FORWARD: 30, HEAD: 30}
    (finding,) = findings(CAUSE, steps(SLOW, SLOW), NONE, lines(met, met, origins=TAKEN))
    assert finding.because.startswith("all ranks spend")
    assert "train.py:10 in main (`for batch in shards():`)" in finding.because
    assert finding.where.ranks == ()
    assert finding.confidence is Confidence.LIKELY
    assert "num_workers" in finding.fixes[0].paste


def test_a_lock_that_one_rank_has_at_a_time(findings: Findings) -> None:
    met = {FORWARD: 30, ("rest", 10, "with lock: batch = read(row)"): 30}
    seen = lines(met, met, origins=(origin(10),))
    (finding,) = findings(CAUSE, steps(SLOW, SLOW), NONE, seen)
    assert "hold the lock only while" in finding.fixes[0].summary
    assert "several ranks may read at once" in finding.fixes[0].paste


def test_on_one_rank(findings: Findings) -> None:
    met = {FORWARD: 30, HEAD: 30}
    seen = lines({FORWARD: 30}, met, {FORWARD: 30}, origins=TAKEN)
    (finding,) = findings(CAUSE, steps(USUAL, SLOW, USUAL), NONE, seen)
    assert finding.because.startswith("rank 1 spends")
    assert finding.where.ranks == (1,)


def test_on_a_rank_that_is_late_by_less(findings: Findings) -> None:
    met = {FORWARD: 30, HEAD: 30}
    seen = lines({FORWARD: 30}, met, origins=TAKEN)
    work = steps(with_more("rest", every(4, 0.01)), with_more("rest", 0.013), noise=0.02)
    (finding,) = findings(CAUSE, work, NONE, seen)
    assert finding.where.ranks == (1,)
    assert finding.cost is not None
    assert finding.cost.value < 0.1


@pytest.mark.parametrize(("all_wait", "more", "ranks"), [(0.08, 0.05, ()), (0.02, 0.09, (1,))])
def test_on_all_ranks_and_longer_on_one(
    findings: Findings, all_wait: float, more: float, ranks: tuple[int, ...]
) -> None:
    met = {FORWARD: 30, HEAD: 30}
    each, longest = with_more("rest", all_wait), with_more("rest", all_wait + more)
    seen = lines(met, met, met, origins=TAKEN)
    (finding,) = findings(CAUSE, steps(each, longest, each), NONE, seen)
    assert finding.where.ranks == ranks


def test_by_lines_of_a_loop_that_counts(findings: Findings) -> None:
    met = {FORWARD: 30, ("rest", 12, "batch = table[rows]"): 30}
    seen = lines(met, origins=(origin(11), origin(12)))
    (finding,) = findings(CAUSE, steps(SLOW), NONE, seen)
    assert "`batch = table[rows]`" in finding.because


@pytest.mark.parametrize(
    ("line", "seconds", "origins"),
    [
        # Too little; on something else; after the model; on what the head gives.
        (10, 0.005, TAKEN),
        (12, 0.05, TAKEN),
        (30, 0.05, TAKEN),
        (12, 0.05, (*TAKEN, origin(12))),
    ],
)
def test_quiet(findings: Findings, line: int, seconds: float, origins: tuple[Origin, ...]) -> None:
    met = {FORWARD: 30, ("rest", line, "work()"): 30}
    work = with_more("rest", seconds)
    assert findings(CAUSE, steps(work, work), NONE, lines(met, met, origins=origins)) == ()


def test_quiet_about_what_wraps_a_data_loader(findings: Findings) -> None:
    met = lines({FORWARD: 30, HEAD: 30}, origins=TAKEN)
    there = Loading(loaders=(loader_with(taken=60, wait_seconds=(0.0,) * 60),))
    assert findings(CAUSE, steps(SLOW), there, met) == ()
    (finding,) = findings("collate-bottleneck", steps(SLOW), there, met)
    assert "train.py:10" in finding.because


def test_quiet_about_a_rank_that_is_late_elsewhere(findings: Findings) -> None:
    slow = {FORWARD: 30, ("rest", 30, "report()"): 30, HEAD: 1}
    met = {FORWARD: 30, HEAD: 1}
    seen = lines(met, slow, met, origins=TAKEN)
    assert findings(CAUSE, steps(USUAL, SLOW, USUAL), NONE, seen) == ()


GIVES = (in_train(10, gives=True),)
READS = user(6, "rows = read(shard)", "produce")
WRITES = user(8, "write(lines.get())", "log")
OTHER = user(9, "refresh(cache)", "keep")


def threads(*places: Frame) -> ScriptThreads:
    found = [
        ScriptThread(rank=rank, place=one, cpus=0.1, seconds=9.0)
        for rank in (0, 1)
        for one in places
    ]
    return ScriptThreads(threads=tuple(found))


@pytest.mark.parametrize(
    ("places", "waits", "told"),
    [
        ((READS,), "yield self.queue.get()", True),
        ((READS, WRITES), "yield self.queue.get()", True),
        ((READS, OTHER), "yield self.queue.get()", False),
        ((WRITES,), "yield self.queue.get()", False),
        ((READS,), "yield self.read()", False),
        ((), "yield self.queue.get()", False),
    ],
)
def test_the_thread_that_fills_the_queue(
    findings: Findings, places: tuple[Frame, ...], waits: str, told: bool
) -> None:
    seen = lines(*[{FORWARD: 30, (*HEAD[:2], waits): 30}] * 2, origins=TAKEN)
    (finding,) = findings(CAUSE, steps(SLOW, SLOW), NONE, seen, threads(*places))
    assert ("train.py:6 in produce (`rows = read(shard)`)" in finding.because) is told
    calls = at(10, "for batch in batches:", user(3, waits, "batches"))
    rows = [rank(number, (42, calls), origins=GIVES) for number in (0, 1)]
    (finding,) = findings(CAUSE, look(*rows), threads(*places))
    assert ("train.py:6 in produce (`rows = read(shard)`)" in finding.because) is told


BATCHES = at(10, "for texts in shards():", user(3, "time.sleep(0.01)", "shards"))


def test_live_on_all_ranks(findings: Findings) -> None:
    rows = [rank(number, (42, BATCHES), origins=GIVES) for number in (0, 1)]
    (finding,) = findings(CAUSE, look(*rows))
    assert "ranks 0-1: the main thread gets its batches without a DataLoader" in finding.because
    assert "train.py:3 in shards" in finding.because
    assert "batch_size=None" in finding.fixes[0].paste


def test_live_on_one_rank(findings: Findings) -> None:
    waits = (*STEP, ("collective", 42, at(30, "loss.backward()")))
    late = rank(0, (42, BATCHES), origins=GIVES)
    (finding,) = findings(CAUSE, look(late, rank(1, origins=GIVES, step=waits)))
    assert finding.where.ranks == (0,)


@pytest.mark.parametrize(
    ("samples", "line"),
    [
        # Too little; before the model, and after it.
        (5, 10),
        (42, 12),
        (42, 35),
    ],
)
def test_quiet_live(findings: Findings, samples: int, line: int) -> None:
    calls = at(line, "refresh()", user(3, "time.sleep(0.01)", "refresh"))
    rows = [rank(number, (samples, calls), origins=GIVES) for number in (0, 1)]
    assert findings(CAUSE, look(*rows)) == ()
