from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from msgspec.structs import replace

from ddoctor import engine
from ddoctor.evidence.host import Memory
from ddoctor.evidence.live import LiveLook, LiveRank
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.script import Script
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.evidence.steps import Cache, Growth, MemoryOverTime
from ddoctor.evidence.training import RankHost, RankUse
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.live_look import TRAINING, look, moving
from tests.training_loaders import loader_with

CAUSE = "host-memory-leak"
GIB = 2**30
LOOKS = tuple(range(0, 61, 2))
Course = Callable[[int], float]


def noise(step: int) -> float:
    """Up to 2.4 MiB, without a trend."""
    return 0.24 * (step * 7 % 11)


def sound(step: int) -> float:
    return 320.0 + noise(step)


def leaking(step: int) -> float:
    return 320.0 + 1.6 * step + noise(step)


def growth(
    resident: Course = sound,
    workers: Course | None = None,
    *,
    rank: int = 0,
    steps: Sequence[int] = LOOKS,
    graph: int = 0,
) -> Growth:
    """Of a step of 0.2 s."""
    return Growth(
        rank=rank,
        host=f"node-{rank // 2}",
        times=tuple(0.2 * step for step in steps),
        steps=tuple(steps),
        resident=tuple(map(resident, steps)),
        workers=tuple(map(workers, steps)) if workers else (),
        graph_tensors=graph,
    )


def run(*ranks: Growth) -> MemoryOverTime:
    return MemoryOverTime(ranks=ranks)


def memory(available: int, host: str = "node-0") -> Memory:
    return Memory(host=host, total=512 * GIB, available=available)


def test_a_process_that_grows_with_every_step(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(growth(), growth(leaking, rank=1)))
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.LIKELY
    assert (finding.where.hosts, finding.where.ranks) == (("node-0",), (1,))
    assert "the process of rank 1 grew by 1.6 MiB per step" in finding.because
    assert "a cache of the dataset looks the same" in finding.because
    # 5 steps a second.
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(1.6 * 5 * 3600 / 1024, rel=0.05)


def test_the_line_that_keeps_something_of_each_step(findings: Findings) -> None:
    line = SourceLine(file="train.py", line=40, text="history.append(batch)")
    script = Script(files=("train.py",), kept_values=(line,))
    (finding,) = findings(CAUSE, run(growth(leaking)), script)
    assert "train.py:40 (`history.append(batch)`) may be the reason" in finding.because
    (finding,) = findings(CAUSE, run(growth(workers=leaking)), script)
    assert "train.py:40" not in finding.because
    (finding,) = findings(CAUSE, run(growth(leaking)), Script(files=("train.py",)))
    assert "may be the reason" not in finding.because


def cached(added: int, hits: int, course: Course = leaking) -> MemoryOverTime:
    """A process with a cache without a limit."""
    cut = Cache(file="/home/u/store.py", line=17, function="Store.cut", added=added, hits=hits)
    return run(replace(growth(course), caches=(cut,)))


def test_a_cache_that_answers_nothing(findings: Findings) -> None:
    # An epoch that has not ended makes no doubt of it.
    loading = Loading(loaders=(loader_with(rank=0, batches=1000),))
    (finding,) = findings(CAUSE, cached(1200, 3), memory(64 * GIB), loading)
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.CERTAIN
    assert (
        "the cache of Store.cut (store.py:17) has no limit, and got 1200 entries in these steps, "
        "but answered 3 calls"
    ) in finding.because
    assert "maxsize" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("added", "hits"),
    # It answers many; it is full; it gets something now and then.
    [(1200, 5000), (0, 0), (7, 0)],
)
def test_a_cache_that_is_of_use(findings: Findings, added: int, hits: int) -> None:
    (finding,) = findings(CAUSE, cached(added, hits))
    assert "Store.cut" not in finding.because
    assert findings(CAUSE, cached(added, hits, sound)) == ()


def test_workers_that_grow(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(growth(workers=leaking)))
    assert "the DataLoader workers of rank 0" in finding.because
    assert "numpy.array" in finding.fixes[0].paste


def test_what_malloc_keeps_free_in_workers_is_no_leak(findings: Findings) -> None:
    grown = growth(workers=leaking)
    free = tuple(one - 300.0 for one in grown.workers)
    assert findings(CAUSE, run(replace(grown, workers_free=free))) == ()


def test_workers_that_grow_by_more_than_malloc_keeps_free(findings: Findings) -> None:
    grown = growth(workers=leaking)
    free = tuple(40.0 + noise(step) for step in grown.steps)
    (finding,) = findings(CAUSE, run(replace(grown, workers_free=free)))
    assert "grew by 1.6 MiB per step" in finding.because


def test_all_ranks_are_one_finding(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(*(growth(leaking, rank=rank) for rank in range(4))))
    assert "of ranks 0-3 grew" in finding.because
    assert finding.where.hosts == ("node-0", "node-1")


def test_when_the_host_is_full(findings: Findings) -> None:
    # Two ranks of 1.6 MiB at 5 steps a second: 57,600 MiB an hour.
    two = run(growth(leaking), growth(leaking, rank=1))
    (finding,) = findings(CAUSE, two, memory(110 * GIB))
    assert "at this rate node-0 is full in 2 hours" in finding.because
    assert finding.severity is Severity.WARNING
    tight = Memory(
        host="node-0",
        total=512 * GIB,
        available=110 * GIB,
        limit=30 * GIB,
        used_in_limit=20 * GIB,
    )
    (finding,) = findings(CAUSE, two, tight)
    assert "node-0 is full in 10 minutes" in finding.because
    assert finding.severity is Severity.ERROR  # the run is about to end


def test_a_note_where_it_takes_more_than_a_week(findings: Findings) -> None:
    slow = run(growth(lambda step: 900.0 + 1.2 * step))
    (finding,) = findings(CAUSE, slow, memory(6000 * GIB))
    assert finding.severity is Severity.NOTE
    assert "full in 12 days" in finding.because


def loading(
    *, workers: int = 0, batches: int = 25, ended: bool = False, batch_bytes: int = 2**20
) -> Loading:
    loader = loader_with(
        name="train.py:9",
        dataset="Images",
        items=8 * batches,
        batch_size=8,
        batches=batches,
        batch_bytes=batch_bytes,
        num_workers=workers,
        prefetch_factor=None,
        sampler="RandomSampler",
        epoch_batches=(batches, batches) if ended else (),
    )
    return Loading(loaders=(loader,))


@pytest.mark.parametrize("seen", [loading(ended=True), loading(workers=2), Loading(loaders=())])
def test_beyond_an_epoch_or_beside_the_workers_it_is_no_cache(
    findings: Findings, seen: Loading
) -> None:
    (finding,) = findings(CAUSE, run(growth(leaking)), seen)
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.CERTAIN
    assert "cache" not in finding.because


def test_a_cache_that_would_fit_is_a_note(findings: Findings) -> None:
    # 100,000 batches of 1.6 MiB make 156 GiB.
    sections = run(growth(leaking)), loading(batches=100_000)
    (finding,) = findings(CAUSE, *sections, memory(400 * GIB))
    assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.POSSIBLE)
    (finding,) = findings(CAUSE, *sections, memory(100 * GIB))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    # The loop keeps something of each step, so it is hardly one.
    line = SourceLine(file="train.py", line=40, text="history.append(batch)")
    keeps = Script(files=("train.py",), kept_values=(line,))
    (finding,) = findings(CAUSE, *sections, memory(400 * GIB), keeps)
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)


def test_garbage_that_nobody_collects(findings: Findings) -> None:
    host = RankHost(
        rank=0,
        host="node-0",
        local_ranks=1,
        threads=1,
        affinity=(0, 1),
        host_cpus=2,
        gc_enabled=False,
    )
    (finding,) = findings(CAUSE, run(growth(leaking)), RankUse(hosts=(host,), flags=()))
    assert "garbage collection is off" in finding.because
    assert "gc.collect()" in finding.fixes[0].paste


def test_a_note_where_it_may_still_be_the_allocator(findings: Findings) -> None:
    little = run(growth(lambda step: 320.0 + 0.8 * step + noise(step)))
    (finding,) = findings(CAUSE, little)
    assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.POSSIBLE)
    assert "record more steps to be sure" in finding.because


@pytest.mark.parametrize(
    ("workers", "batch", "severity"),
    [
        (0, 2, Severity.WARNING),
        (0, 20, Severity.NOTE),
        (2, 2, Severity.WARNING),
        (2, 8, Severity.NOTE),
    ],
)
def test_a_note_where_it_may_be_what_batches_need(
    findings: Findings, workers: int, batch: int, severity: Severity
) -> None:
    """96 MiB in all."""
    seen = loading(workers=workers, ended=True, batch_bytes=batch * 2**20)
    grown = growth(workers=leaking) if workers else growth(leaking)
    (finding,) = findings(CAUSE, run(grown), seen)
    assert finding.severity is severity
    assert (finding.confidence is Confidence.POSSIBLE) is (severity is Severity.NOTE)


def test_it_follows_from_tensors_that_keep_their_graph() -> None:
    (finding,) = engine.examine(Evidence([run(growth(leaking, graph=60))]), "run").findings
    assert finding.cause == "autograd-graph-retained"
    assert finding.consequences == (CAUSE,)


@pytest.mark.parametrize(
    "course",
    [
        pytest.param(sound, id="what comes and goes"),
        pytest.param(lambda step: 320 + 200 * (1 - 0.8**step), id="an allocator that warms up"),
        pytest.param(lambda step: 320 + 200 * (1 - 0.97**step), id="one that warms up slowly"),
        pytest.param(lambda step: 320 + min(step, 30) * 4.0, id="a cache that is full at last"),
        pytest.param(lambda step: 320 + (step % 20) * 4.0, id="freed with every epoch"),
        pytest.param(lambda step: 320 + 64.0 * (step > 30), id="a single allocation"),
        pytest.param(lambda step: 320 - 1.6 * step, id="it shrinks"),
        pytest.param(lambda step: 320 + 4.0 * step * (step < 58), id="a rank that ran ahead"),
        pytest.param(lambda step: 320 + 0.05 * step, id="so little that it does not matter"),
        pytest.param(lambda step: 320 + 0.4 * step, id="no more than sound loops drift"),
        pytest.param(lambda step: 320 + 0.6 * step + 16 * noise(step), id="lost in what swings"),
    ],
)
def test_quiet(findings: Findings, course: Course) -> None:
    assert findings(CAUSE, run(growth(course, course))) == ()


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param((), id="not looked at"),
        pytest.param((0, 60), id="two looks"),
        pytest.param(tuple(range(0, 60, 10)), id="few looks"),
        pytest.param(tuple(step // 8 for step in range(60)), id="few steps"),
    ],
)
def test_quiet_where_it_was_not_seen_for_long(findings: Findings, steps: Sequence[int]) -> None:
    assert findings(CAUSE, run(growth(lambda step: 320 + 20.0 * step, steps=steps))) == ()


def holding(
    rank: int,
    per_look: float,
    *,
    workers: float = 0.0,
    met: Mapping[str, int] = TRAINING,
    bend: int = 20,
) -> LiveRank:
    """Grows for so many looks of half a second, MiB by look."""
    return replace(
        moving(rank, met),
        held=tuple(900.0 + per_look * min(look, bend) for look in range(20)),
        workers_held=tuple(400.0 + workers * look for look in range(20)),
    )


def test_memory_that_is_full_within_the_hour(findings: Findings) -> None:
    live = look(*(replace(holding(rank, rate), on_gpu=True) for rank, rate in enumerate((0.5, 10))))
    (finding,) = findings(CAUSE, live, memory(8 * GIB))
    assert finding.severity is Severity.ERROR
    assert finding.where.ranks == (1,)
    assert "the process of rank 1 grew from 900 to 1090 MiB in 10 s" in finding.because
    assert "node-0 is full in 7 minutes" in finding.because


def test_on_a_cpu_it_may_be_memory_that_malloc_keeps_free(findings: Findings) -> None:
    live = look(holding(0, 0.5), holding(1, 10.0))
    (finding,) = findings(CAUSE, live, memory(8 * GIB))
    assert finding.severity is Severity.NOTE
    assert "malloc keeps free" in finding.because


def test_on_a_cpu_it_is_a_leak_where_it_grows_more_than_malloc_could_keep(
    findings: Findings,
) -> None:
    live = look(holding(0, 0.5), holding(1, 100.0))
    (finding,) = findings(CAUSE, live, memory(8 * GIB))
    assert finding.severity is Severity.ERROR
    assert "malloc keeps free" not in finding.because


def test_quiet_where_only_free_memory_of_malloc_grows(findings: Findings) -> None:
    leak = growth(leaking)
    free = tuple(amount - 300.0 for amount in leak.resident)
    assert findings(CAUSE, run(leak)) != ()
    assert findings(CAUSE, run(replace(leak, malloc_free=free))) == ()


def test_memory_of_workers_seen_from_outside(findings: Findings) -> None:
    live = look(*(holding(rank, 0.0, workers=10.0) for rank in range(2)))
    (finding,) = findings(CAUSE, live, memory(8 * GIB))
    assert finding.where.ranks == (0, 1)
    assert finding.because.startswith("the DataLoader workers of rank 0 grew")
    assert "(the fastest of 2)" in finding.because
    assert "node-0 is full in 4 minutes" in finding.because


@pytest.mark.parametrize(
    ("live", "free"),
    [
        (look(holding(0, 0.0), holding(1, 0.0)), 8),
        # Little; it lasts for long; it has ended; it keeps what it predicts; nothing is known.
        (look(holding(0, 2.0), holding(1, 2.0)), 8),
        (look(holding(0, 10.0), holding(1, 10.0)), 1000),
        (look(holding(0, 30.0, bend=10), holding(1, 30.0, bend=10)), 8),
        (look(*(holding(rank, 10.0, met={"evaluation": 100}) for rank in range(2))), 8),
        (look(moving(0), moving(1)), 8),
    ],
)
def test_is_quiet_at_what_a_look_tells(findings: Findings, live: LiveLook, free: int) -> None:
    assert findings(CAUSE, live, memory(free * GIB)) == ()


def test_is_quiet_where_it_is_not_known_how_much_is_free(findings: Findings) -> None:
    assert findings(CAUSE, look(holding(0, 10.0), holding(1, 10.0))) == ()
