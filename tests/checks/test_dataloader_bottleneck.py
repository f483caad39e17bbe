from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from ddoctor import check_catalog, engine
from ddoctor.evidence.loading import CurvePoint, Loader, LoaderCurve, Loading
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import HotLine, Lines, Phase, PhaseName, RankLines, RankSteps, Steps
from ddoctor.evidence.training import RankHost, RankUse, TrainingRun
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.training_loaders import loader_with
from tests.training_steps import lines

CAUSE = "dataloader-bottleneck"
COUNT = 60
REST = 0.02
"""Seconds of a step without its loader."""


def loaded(*per_rank: float | Sequence[float], rest: float = REST, cpu: float = 0.0) -> Steps:
    """Ranks that are in the loader for so long in each step; the others wait for the latest."""
    waits = [[one] * COUNT if isinstance(one, float) else list(one) for one in per_rank]
    latest = [max(step) for step in zip(*waits, strict=True)]
    return Steps(
        warm_up=5,
        ranks=tuple(
            RankSteps(
                place=RankPlace(rank=rank, host=f"node-{rank // 2}", device="cpu"),
                phases=(
                    Phase(name="loader", seconds=tuple(mine)),
                    Phase(name="forward", seconds=(rest / 2,) * COUNT),
                    Phase(name="backward", seconds=(rest / 2 - 0.001,) * COUNT),
                    Phase(
                        name="waiting",
                        seconds=tuple(b - a for a, b in zip(mine, latest, strict=True)),
                    ),
                    Phase(name="transfer", seconds=(0.001,) * COUNT),
                ),
                cpu=(cpu,) * COUNT if cpu else (),
            )
            for rank, mine in enumerate(waits)
        ),
    )


def loader(rank: int = 0, workers: int = 0, batch: float = 0.06, **more: object) -> Loader:
    """A loader whose batch of 32 takes a worker so long, all of it waiting for a disk."""
    plain = loader_with(
        rank=rank,
        host=f"node-{rank // 2}",
        batches=1000,
        num_workers=workers,
        prefetch_factor=2 if workers else None,
        fetched=32 * COUNT,
        fetch_seconds=batch * COUNT * 0.95,
        fetch_cpu_seconds=batch * COUNT * 0.02,
        collated=COUNT,
        collate_seconds=batch * COUNT * 0.05,
        collate_cpu_seconds=batch * COUNT * 0.05,
        taken=COUNT,
        wait_seconds=(0.0,) * COUNT,
        wait_steps=tuple(range(COUNT)),
    )
    return msgspec.structs.replace(plain, **more)


def loading(*loaders: Loader) -> Loading:
    return Loading(loaders=loaders)


def curve(seconds: dict[int, float], ranks: int = 1) -> LoaderCurve:
    return LoaderCurve(
        points=tuple(
            CurvePoint(
                rank=rank,
                name="train.py:42",
                num_workers=workers,
                seconds_per_batch=second,
                batches=20,
                start_seconds=0.1,
            )
            for rank in range(ranks)
            for workers, second in seconds.items()
        )
    )


def hosts(*affinities: Sequence[int], quota: float | None = None) -> RankUse:
    return RankUse(
        flags=(),
        hosts=tuple(
            RankHost(
                rank=rank,
                host="node-0",
                local_ranks=len(affinities),
                threads=1,
                affinity=tuple(affinity),
                host_cpus=64,
                quota=quota,
            )
            for rank, affinity in enumerate(affinities)
        ),
    )


def computing(rank: int) -> Loader:
    """The same, but on a CPU for nearly all of the time."""
    return loader(rank, fetch_cpu_seconds=0.06 * COUNT * 0.93)


def test_the_fewest_workers_that_are_enough(findings: Findings) -> None:
    (finding,) = findings(CAUSE, loaded(0.06, 0.06), loading(loader(0), loader(1)))
    assert finding.confidence is Confidence.CERTAIN
    assert finding.where.ranks == ()
    assert "needs a batch every 0.020 s and gets one every 0.080 s" in finding.because
    assert "32 items of 1.78 ms each" in finding.because
    assert finding.cost is not None
    assert finding.cost.value == 0.75
    (fix,) = finding.fixes
    assert fix.settings == ("loader.num_workers=3",)
    assert "num_workers=3)  # train.py:42" in fix.paste
    assert fix.expected_gain == "0.08 to 0.02 s per step, by the time for a batch"


def test_a_sampler_that_takes_most_of_the_wait(findings: Findings) -> None:
    """No worker draws the indices of a batch."""
    slow = loader(batch=0.001, sampler="PrioritySampler", sampler_seconds=0.03)
    drawn = HotLine(
        phase="loader",
        file="train.py",
        line=52,
        function="__iter__",
        text="yield rng.choice(n, size=size, p=p)",
        samples=40,
    )
    lines = Lines(ranks=(RankLines(rank=0, samples=60, lines=(drawn,)),))
    (finding,) = findings(CAUSE, loaded(0.036), loading(slow), lines)
    assert finding.severity is Severity.WARNING
    assert "PrioritySampler takes 0.03 s for them at train.py:52 in __iter__" in finding.because
    assert [fix.summary for fix in finding.fixes] == [
        "draw the indices of many batches at once, and hand them out"
    ]


def test_a_fast_sampler_is_not_told(findings: Findings) -> None:
    (finding,) = findings(CAUSE, loaded(0.06), loading(loader(sampler_seconds=0.002)))
    assert "takes 0.060 s per batch" in finding.because


def test_an_archive_that_is_opened_for_each_item(findings: Findings) -> None:
    opens = HotLine(
        phase="loader",
        file="tiles.py",
        line=35,
        function="read",
        text="with h5py.File(self.path) as tiles:",
        samples=40,
    )
    (finding,) = findings(CAUSE, loaded(0.06), loading(loader(workers=1, lines=(opens,))))
    assert "open it once in each worker: tiles.py:35" in finding.fixes[0].summary


def test_one_rank_alone(findings: Findings) -> None:
    steps = loaded(0.001, 0.06, 0.001, 0.001)
    loaders = [loader(rank, batch=0.06 if rank == 1 else 0.001) for rank in range(4)]
    (finding,) = findings(CAUSE, steps, loading(*loaders))
    assert finding.where.ranks == (1,)
    assert finding.where.hosts == ("node-0",)
    assert "rank 1 needs" in finding.because
    assert "the other ranks wait 0.001 s" in finding.because


def test_one_rank_of_two(findings: Findings) -> None:
    loaders = loading(loader(0, batch=0.001), loader(1))
    (finding,) = findings(CAUSE, loaded(0.001, 0.06), loaders)
    assert finding.where.ranks == (1,)


def test_too_few_workers_bring_their_batches_together(findings: Findings) -> None:
    every_fourth = [0.08 if step % 4 == 0 else 0.0 for step in range(COUNT)]
    section = loading(loader(workers=4, batch=0.16))
    (finding,) = findings(CAUSE, loaded(every_fourth), section)
    assert "each of 4 workers takes 0.160 s" in finding.because
    assert finding.fixes[0].settings == ("loader.num_workers=8",)


def test_batches_of_a_step_that_accumulates(findings: Findings) -> None:
    section = loading(loader(taken=4 * COUNT, batch=0.03))
    (finding,) = findings(CAUSE, loaded(0.12, rest=0.04), section)
    assert "needs a batch every 0.010 s" in finding.because
    assert finding.fixes[0].settings == ("loader.num_workers=3",)


@pytest.mark.parametrize(
    ("measured", "workers"),
    [
        ({3: 0.0205, 4: 0.016}, 3),
        # Four do what the model expects of three.
        ({2: 0.04, 4: 0.0195, 6: 0.014}, 4),
        ({2: 0.035, 5: 0.0125}, 4),
        # What was tried is not enough, and it still grows.
        ({1: 0.09, 2: 0.046}, 5),
        # With more workers, it made nothing at all.
        ({2: 0.035, 5: 0.0125, 6: 1e18}, 4),
    ],
)
def test_a_measured_curve_wins(
    findings: Findings, measured: dict[int, float], workers: int
) -> None:
    (finding,) = findings(CAUSE, loaded(0.06), loading(loader()), curve(measured))
    assert finding.fixes[0].settings == (f"loader.num_workers={workers}",)
    assert finding.fixes[0].expected_gain is not None
    assert finding.fixes[0].expected_gain.endswith("measured with the loader alone")


def test_beyond_the_knee_there_is_nothing_to_gain(findings: Findings) -> None:
    measured = curve({1: 0.06, 2: 0.041, 4: 0.04, 6: 0.04})
    (finding,) = findings(CAUSE, loaded(0.06), loading(loader()), measured)
    assert "no number of workers makes one faster than every 0.041 s" in finding.because
    few, source = finding.fixes
    assert few.settings == ("loader.num_workers=2",)
    assert "iostat" in source.caution


def test_workers_that_wait_for_a_cpu_need_no_faster_disk(findings: Findings) -> None:
    measured = curve({1: 0.06, 2: 0.041, 4: 0.04, 6: 0.04})
    waits = loader(queued_seconds=0.05 * COUNT)
    (finding,) = findings(CAUSE, loaded(0.06), loading(waits), measured)
    assert "on a CPU for 7% of it and waiting for a CPU for 83%" in finding.because
    assert [fix.paste.count("items.pt") for fix in finding.fixes] == [0, 2]


def test_workers_share_the_quota_of_the_host(findings: Findings) -> None:
    steps = loaded(0.06, 0.06, cpu=0.07)
    section = loading(computing(0), computing(1))
    sixteen = tuple(range(16))
    (finding,) = findings(CAUSE, steps, section, hosts(sixteen, sixteen, quota=4))
    # 0.011 s of a main thread and 0.059 s of its workers, twice: 0.035 s a step on 4 CPUs.
    assert "would need 7 CPUs" in finding.because
    assert finding.fixes[0].settings == ("loader.num_workers=2",)
    assert "compute the items once" in finding.fixes[1].summary
    (finding,) = findings(CAUSE, steps, section, hosts(sixteen, sixteen, quota=16))
    assert finding.fixes[0].settings == ("loader.num_workers=3",)


def test_where_the_cpus_are_used_up_no_worker_helps(findings: Findings) -> None:
    steps = loaded(0.06, 0.06, cpu=0.08)
    section = loading(computing(0), computing(1))
    (finding,) = findings(CAUSE, steps, section, hosts((0,), (1,)))
    (fix,) = finding.fixes
    assert fix.settings == ()
    assert "items.pt" in fix.paste


def test_where_the_cpus_are_used_up_workers_seem_to_wait(findings: Findings) -> None:
    """They then wait for a CPU, which no disk gives."""
    half = 0.024 * COUNT
    section = loading(*(loader(rank, workers=1, fetch_cpu_seconds=half) for rank in (0, 1)))
    (finding,) = findings(CAUSE, loaded(0.03, 0.03, cpu=0.028), section, hosts((0, 1), (0, 1)))
    assert "would need" in finding.because
    assert finding.fixes[-1].paste.count("items.pt") == 2


def test_work_that_waits_needs_no_cpus(findings: Findings) -> None:
    steps = loaded(0.06, 0.06, cpu=0.01)
    (finding,) = findings(CAUSE, steps, loading(loader(0), loader(1)), hosts((0,), (0,)))
    assert finding.fixes[0].settings == ("loader.num_workers=3",)


def test_what_the_workers_cost_is_told(findings: Findings) -> None:
    section = loading(*(loader(r, worker_memory=512.0, batch_bytes=2**20) for r in (0, 1)))
    (finding,) = findings(CAUSE, loaded(0.06, 0.06), section)
    assert "6 workers on a host take about 3 GiB" in finding.fixes[0].caution
    assert "12 MiB of batches in /dev/shm" in finding.fixes[0].caution


@pytest.mark.parametrize(("batch", "ranks"), [(0.06, ()), (0.02, (1,))])
def test_a_rank_whose_loader_is_as_slow_waits_for_the_worst_one(
    findings: Findings, batch: float, ranks: tuple[int, ...]
) -> None:
    section = loading(loader(0, workers=1, batch=batch), loader(1, workers=1, batch=0.06))
    (finding,) = findings(CAUSE, loaded(0.002, 0.04), section)
    assert finding.where.ranks == ranks


def test_a_stream_has_no_items_by_number(findings: Findings) -> None:
    section = loading(*(replace(computing(rank), kind="iterable") for rank in (0, 1)))
    (finding,) = findings(CAUSE, loaded(0.06, 0.06, cpu=0.08), section, hosts((0,), (1,)))
    assert "in Pictures.__iter__" in finding.fixes[-1].paste
    assert "len(" not in finding.fixes[-1].paste


def test_a_stream_must_be_shared_out_among_workers(findings: Findings) -> None:
    (finding,) = findings(CAUSE, loaded(0.06), loading(loader(kind="iterable")))
    assert "get_worker_info" in finding.fixes[0].caution


def test_short_epochs_keep_their_workers(findings: Findings) -> None:
    section = loading(loader(epoch_batches=(20, 20), batches=20))
    (finding,) = findings(CAUSE, loaded(0.06), section)
    assert finding.fixes[0].settings == (
        "loader.num_workers=3",
        "loader.persistent_workers=true",
    )


def test_trainer_has_its_own_words(findings: Findings) -> None:
    run = TrainingRun(command=("train.py",), seconds=9.0, ranks=(), framework="transformers")
    (finding,) = findings(CAUSE, loaded(0.06), loading(loader()), run)
    assert "dataloader_num_workers=3" in finding.fixes[0].paste


def test_items_of_unequal_cost_want_a_longer_queue(findings: Findings) -> None:
    now_and_then = [0.2 if step % 10 == 9 else 0.0 for step in range(COUNT)]
    (finding,) = findings(CAUSE, loaded(now_and_then), loading(loader(workers=4, batch=0.07)))
    assert finding.fixes[-1].settings == ("loader.prefetch_factor=8",)


@pytest.mark.parametrize("collate", [0.001, 0.005])
def test_workers_that_are_fast_enough_are_a_note(findings: Findings, collate: float) -> None:
    """On a busy machine a batch may be late that was ready long ago."""
    able = loader(workers=1, batch=0.004, collate_seconds=collate * COUNT)
    (finding,) = findings(CAUSE, loaded(0.006), loading(able))
    assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.POSSIBLE)
    assert "that is fast enough" in finding.because
    assert [fix.settings for fix in finding.fixes] == [("loader.prefetch_factor=8",)]


def test_the_line_of_the_dataset(findings: Findings) -> None:
    line = HotLine(
        phase="loader",
        file="data.py",
        line=12,
        function="__getitem__",
        text="return resize(picture)",
        samples=30,
    )
    met = Lines(ranks=(RankLines(rank=0, samples=60, lines=(line,)),))
    (finding,) = findings(CAUSE, loaded(0.06), loading(loader()), met)
    assert finding.evidence[-1].value == "data.py:12 return resize(picture)"
    # With workers, it is theirs that counts.
    of_workers = loader(workers=1, lines=(msgspec.structs.replace(line, line=30),))
    (finding,) = findings(CAUSE, loaded(0.06), loading(of_workers), met)
    assert finding.evidence[-1].value == "data.py:30 return resize(picture)"
    assert finding.evidence[-1].source == "30 of 30 samples of the workers in __getitem__"


def test_a_function_counts_with_all_its_lines(findings: Findings) -> None:
    met = lines(
        {("loader", 5, "return stack(items)"): 8, ("loader", 9, "a()"): 7, ("loader", 8, "b()"): 7}
    )
    (rank,) = met.ranks
    own, *others = rank.lines
    apart = msgspec.structs.replace(own, function="collate")
    met = Lines(ranks=(msgspec.structs.replace(rank, lines=(apart, *others)),))
    (finding,) = findings(CAUSE, loaded(0.06), loading(loader()), met)
    assert finding.evidence[-1].value == "train.py:9 a()"


def test_it_explains_the_late_rank() -> None:
    check = check_catalog.load(CAUSE)
    assert {"straggler-rank", "scaling-efficiency-low"} <= set(check.explains)
    loaders = loading(loader(0, batch=0.001), loader(1))
    report = engine.examine(Evidence([loaded(0.001, 0.06), loaders]), "run")
    assert report.findings[0].cause == CAUSE


def test_an_empty_queue_at_each_epoch(findings: Findings) -> None:
    edges = [0.4 if step % 10 == 0 else 0.0 for step in range(COUNT)]
    section = loading(
        loader(
            workers=16,
            batch=0.3,
            persistent_workers=True,
            epoch_batches=(10,) * 6,
            first_waits=(0.5,) + (0.4,) * 6,
            first_batches=tuple(range(0, COUNT, 10)),
        )
    )
    (finding,) = findings(CAUSE, loaded(edges), section)
    assert "each epoch of 10 batches" in finding.because
    assert "ConcatDataset([dataset] * 10)" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "waits",
    [
        [0.0015] * COUNT,
        # One slow moment, however long.
        [0.0015] * (COUNT - 1) + [3.0],
        [0.5] * 5 + [0.0015] * (COUNT - 5),
        # For half of the time, as a neighbour was busy.
        [0.03] * (COUNT // 2) + [0.0015] * (COUNT // 2),
    ],
)
def test_quiet_where_the_step_hardly_waits(findings: Findings, waits: list[float]) -> None:
    assert findings(CAUSE, loaded(waits), loading(loader(workers=3))) == ()


def test_edges_that_differ_are_no_need_of_workers(findings: Findings) -> None:
    edges = [(0.4 if step % 20 else 0.9) if step % 10 == 0 else 0.0 for step in range(COUNT)]
    section = loading(
        loader(
            workers=3,
            epoch_batches=(10,) * 6,
            starts=(0.9, *(0.3, 0.6) * 3),
            first_waits=(0.9, *(0.1, 0.3) * 3),
            first_batches=tuple(range(0, COUNT, 10)),
        )
    )
    assert findings(CAUSE, loaded(edges), section) == ()


def test_quiet_about_the_edges_of_epochs(findings: Findings) -> None:
    edges = [0.2 if step % 10 == 0 else 0.0 for step in range(COUNT)]
    section = loading(
        loader(
            workers=3,
            epoch_batches=(10,) * 6,
            starts=(0.1,) * 7,
            first_waits=(0.1,) * 7,
            first_batches=tuple(range(0, COUNT, 10)),
        )
    )
    assert findings(CAUSE, loaded(edges), section) == ()


def test_items_and_collate_that_take_about_the_same(findings: Findings) -> None:
    section = loading(loader(fetch_seconds=1.6, collate_seconds=2.0))
    (finding,) = findings(CAUSE, loaded(0.06), section)
    assert "of collate" in finding.because


def test_quiet_where_collate_is_what_takes_long(findings: Findings) -> None:
    section = loading(loader(fetch_seconds=1.0, collate_seconds=2.6))
    assert findings(CAUSE, loaded(0.06), section) == ()


def test_quiet_about_ranks_that_wait_for_others(findings: Findings) -> None:
    steps = loaded(0.001, 0.001)
    late = msgspec.structs.replace(
        steps.ranks[1],
        phases=(*steps.ranks[1].phases, Phase(name="rest", seconds=(0.1,) * COUNT)),
    )
    steps = msgspec.structs.replace(steps, ranks=(steps.ranks[0], late))
    assert findings(CAUSE, steps, loading(loader(0), loader(1))) == ()


def test_quiet_about_a_few_steps(findings: Findings) -> None:
    short = loaded(0.06)
    rank = short.ranks[0]
    phases = tuple(Phase(name=one.name, seconds=one.seconds[:9]) for one in rank.phases)
    steps = Steps(warm_up=5, ranks=(RankSteps(place=rank.place, phases=phases),))
    assert findings(CAUSE, steps, loading(loader(taken=9))) == ()


def test_a_fix_is_told_where_another_rank_is_as_late(findings: Findings) -> None:
    seconds: dict[PhaseName, float] = {"loader": 0.0, "forward": 0.07, "backward": 0.009}
    seconds |= {"waiting": 0.0, "transfer": 0.001}
    first, second = loaded(0.001, 0.06).ranks
    phases = tuple(Phase(name=name, seconds=(length,) * COUNT) for name, length in seconds.items())
    steps = Steps(warm_up=5, ranks=(msgspec.structs.replace(first, phases=phases), second))
    (finding,) = findings(CAUSE, steps, loading(loader(0, batch=0.0001), loader(1)))
    assert finding.where.ranks == (1,)
    (fix,) = finding.fixes
    assert "num_workers=1)" in fix.paste
    assert fix.settings == ()
    assert "only after the other cause that delays it is fixed" in fix.caution


@pytest.mark.parametrize(
    ("text", "more", "lock"),
    [
        ("fcntl.flock(file, fcntl.LOCK_EX)", {}, True),
        ('with FileLock("cache.lock"):', {}, True),
        ("self.lock.acquire()", {}, True),
        ("with self.lock:", {}, True),
        ("return read(path)", {}, False),
        ("return self.blocks[index]", {}, False),
        # The worker computes while it has the lock.
        ("with self.lock:", {"fetch_cpu_seconds": 0.05 * COUNT}, False),
        # It waits for a CPU there.
        ("with self.lock:", {"queued_seconds": 0.05 * COUNT}, False),
    ],
)
def test_workers_that_wait_for_a_lock(
    findings: Findings, text: str, more: dict[str, float], lock: bool
) -> None:
    line = HotLine(
        phase="loader", file="data.py", line=12, function="__getitem__", text=text, samples=30
    )
    other = msgspec.structs.replace(line, line=13, text="return item", samples=20)
    rows = [loader(rank, workers=1, lines=(line, other), **more) for rank in (0, 1)]
    (finding,) = findings(CAUSE, loaded(0.06, 0.06), loading(*rows))
    assert ("wait for each other at data.py:12" in finding.because) is lock
    assert ("hold the lock" in finding.fixes[0].summary) is lock
    assert any("num_workers" in fix.paste for fix in finding.fixes) is not lock


def test_a_lock_that_is_seldom_awaited(findings: Findings) -> None:
    line = HotLine(
        phase="loader", file="d.py", line=1, function="f", text="with self.lock:", samples=9
    )
    other = msgspec.structs.replace(line, line=2, text="return read(path)", samples=30)
    (finding,) = findings(CAUSE, loaded(0.06), loading(loader(workers=1, lines=(other, line))))
    assert "num_workers" in finding.fixes[0].paste
