"""What differs between two times of a run: the phase that grew, on which ranks, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import pytest

from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import RankHost
from ddoctor.recorder.tape import COLLECTIVE, COUNT, COUNTS, FORWARD, LOADER, PHASES, StepRow
from ddoctor.training import merge
from ddoctor.training.change import Comparison, cause, compared
from ddoctor.training.messages import Record
from tests.training_run import ending

CHANGE = 100
STEP = {FORWARD: 0.010, LOADER: 0.001}

Phases = Callable[[int, int], Mapping[int, float]]


def record(
    rank: int,
    phases: Phases,
    *,
    elements: float = 100.0,
    queued: float = 0.0,
    others: float = 0.0,
    transfer: float = 0.001,
) -> Record:
    """A rank with 200 steps; ``phases``: seconds by rank and step, without waiting.

    After the change: ``elements`` of a batch, ``queued`` seconds per step without a CPU, CPUs that
    ``others`` use, and seconds of a ``transfer``.
    """
    rows, now, readings, without, busy = [], 0.0, [], 0.0, 0.0
    for number in range(2 * CHANGE):
        seconds = phases(rank, number)
        # All ranks leave a collective at the same time.
        slowest = max(sum(phases(one, number).values()) for one in range(2))
        transfers = transfer if number >= CHANGE else 0.001
        waiting = transfers + slowest - sum(seconds.values())
        each = [seconds.get(phase, 0.0) for phase in range(len(PHASES))]
        each[COLLECTIVE] = waiting
        counts = [0.0] * len(COUNTS)
        counts[COUNT["elements"]] = elements if number >= CHANGE else 100.0
        end = now + sum(each)
        rows.append(
            StepRow(
                number=number,
                begin=now,
                end=end,
                cpu=0.0,
                phases=tuple(each),
                counts=tuple(counts),
                meetings=((end - waiting, waiting, 0.0, 3.0),),
            )
        )
        without += queued if number >= CHANGE else 0.0
        # Both ranks use a CPU all the time.
        busy += (end - now) * (2.0 + (others if number >= CHANGE else 0.0))
        now = end
        readings.append((now, now, busy, without))
    return Record(
        rank=rank,
        host="a",
        ending=ending(rank, "stopped"),
        ended_by_us=False,
        interrupted=False,
        leaving=True,
        done=2 * CHANGE,
        rows=tuple(rows),
        facts=msgspec.Raw(b"null"),
        grown=None,
        use=RankHost(
            rank=rank,
            host="a",
            local_ranks=2,
            threads=1,
            omp_threads=None,
            affinity=(),
            host_cpus=8,
            quota=None,
            workers=0,
            worker_affinity=(),
        ),
        cpu_seconds=1.0,
        busy_seconds=2.0,
        watched_seconds=1.0,
        readings=tuple(readings),
    )


def comparison(phases: Phases, **fields: float) -> Comparison:
    records = [record(rank, phases, **fields) for rank in range(2)]
    found = compared(records, ("train.py",), CHANGE)
    assert found is not None
    return found


def sound(rank: int, step: int) -> Mapping[int, float]:
    return STEP


def one_slow(rank: int, step: int) -> Mapping[int, float]:
    return STEP | {FORWARD: 0.018} if rank == 1 and step >= CHANGE else STEP


def late_loaders(rank: int, step: int) -> Mapping[int, float]:
    return STEP | {LOADER: 0.009} if step >= CHANGE else STEP


def test_the_rank_that_became_slower_and_not_the_one_that_waits() -> None:
    grown = comparison(one_slow).grown
    assert (grown.phase, grown.ranks, grown.hosts) == ("forward", (1,), ("a",))
    assert grown.seconds == pytest.approx(0.008)


def test_a_phase_that_grew_on_all_ranks_names_none() -> None:
    grown = comparison(late_loaders).grown
    assert (grown.phase, grown.ranks) == ("loader", ())
    assert grown.seconds == pytest.approx(0.008)


def test_what_explains_a_change_is_what_the_slowest_rank_does() -> None:
    assert comparison(one_slow).explained == pytest.approx(0.008)
    assert comparison(sound).explained == pytest.approx(0.0)


def test_fast_steps_are_as_fast_as_before_on_a_machine_that_is_short_of_cpus() -> None:
    def bursts(rank: int, step: int) -> Mapping[int, float]:
        return one_slow(rank, step) if step % 4 else STEP

    found = comparison(bursts)
    assert found.grown.seconds == pytest.approx(0.008)
    assert found.explained == pytest.approx(0.0, abs=1e-9)


def test_longer_batches() -> None:
    assert comparison(sound).longer_batches == pytest.approx(1.0)
    assert comparison(sound, elements=150.0).longer_batches == pytest.approx(1.5)


def test_waiting_for_a_cpu() -> None:
    assert comparison(sound).crowded == pytest.approx(0.0)
    assert comparison(sound, queued=0.004).crowded == pytest.approx(0.004, rel=0.1)


def test_others_that_use_cpus() -> None:
    assert comparison(late_loaders, others=0.2).others is None
    assert comparison(late_loaders, others=2.0).others == pytest.approx(2.0, rel=0.1)


def test_of_a_host_that_was_read_too_rarely_nothing_is_known() -> None:
    records = [record(rank, one_slow, others=2.0, queued=0.004) for rank in range(2)]
    rare = [msgspec.structs.replace(one, readings=one.readings[:1]) for one in records]
    found = compared(rare, ("train.py",), CHANGE)
    assert found is not None
    assert (found.others, found.crowded) == (None, 0.0)


def test_too_few_steps_are_not_compared() -> None:
    records = [record(rank, sound) for rank in range(2)]
    assert compared(records, ("train.py",), 1) is None
    assert compared(records, ("train.py",), 2 * CHANGE - 1) is None


def judged(phases: Phases) -> tuple[Evidence, Evidence]:
    one = comparison(phases)
    return Evidence(merge.sections(one.before)), Evidence(merge.sections(one.after))


def test_the_cause_is_what_was_not_there_before() -> None:
    found = cause(*judged(one_slow))
    assert found is not None
    assert found.cause == "straggler-rank"
    assert found.where.ranks == (1,)


def test_what_was_there_before_is_no_cause() -> None:
    def always(rank: int, step: int) -> Mapping[int, float]:
        return STEP | {FORWARD: 0.018} if rank == 1 else STEP

    assert cause(*judged(always)) is None
    assert cause(*judged(sound)) is None


def test_what_has_become_worse_is_the_cause() -> None:
    def worse(rank: int, step: int) -> Mapping[int, float]:
        slow = {FORWARD: 0.040 if step >= CHANGE else 0.014}
        return STEP | slow if rank == 1 else STEP

    found = cause(*judged(worse))
    assert found is not None
    assert found.cause == "straggler-rank"
