"""Recorded training runs to show: a late rank, a slow loader, a rank that failed, many ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from random import Random

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.loading import CurvePoint, Loader, LoaderCurve, Loading
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import (
    PHASES,
    Growth,
    HotLine,
    Lines,
    MemoryOverTime,
    Phase,
    RankLines,
    RankSteps,
    Steps,
    Wait,
)
from ddoctor.evidence.training import RankEnding, TrainingRun, Trial, Trials, TrialTurn
from tests.report.machines import HOSTILE
from tests.training_loaders import loader_with

COUNT = 60
PER_HOST = 8
GPU = {
    "loader": 0.0012,
    "to-device": 0.0021,
    "forward": 0.024,
    "backward": 0.043,
    "optimizer": 0.006,
    "gc": 0.0001,
    "rest": 0.002,
}
CPU = {"loader": 0.0006, "forward": 0.011, "backward": 0.019, "optimizer": 0.002, "rest": 0.0007}
TRANSFER = 0.004

Extra = Mapping[tuple[int, str], float]
"""Seconds that a phase takes longer on a rank."""


def steps(
    ranks: int,
    usual: Mapping[str, float],
    extra: Extra,
    *,
    count: int = COUNT,
    device: str = "cuda",
    checkpoint_every: int = 0,
) -> Steps:
    """Steps that end together: all wait for the rank whose own work takes longest."""
    random = Random(7)
    own = [
        [
            {
                phase: max(0.0, usual.get(phase, 0.0) + extra.get((rank, phase), 0.0))
                * random.gauss(1.0, 0.02)
                for phase in PHASES
            }
            for _ in range(count)
        ]
        for rank in range(ranks)
    ]
    if checkpoint_every:
        for step in range(checkpoint_every - 1, count, checkpoint_every):
            own[0][step]["checkpoint"] = 0.05
    waits: dict[tuple[int, int], float] = defaultdict(float)
    several = ranks > 1
    for step in range(count):
        works = [sum(own[rank][step].values()) for rank in range(ranks)]
        late = works.index(max(works))
        transfer = TRANSFER * random.gauss(1.0, 0.1) if several else 0.0
        for rank, work in enumerate(works):
            own[rank][step] |= {"waiting": works[late] - work, "transfer": transfer}
            if rank != late:
                waits[rank, late] += works[late] - work
    return Steps(
        warm_up=12,
        clock="cuda" if device == "cuda" else "host",
        ranks=tuple(
            RankSteps(
                place=place(rank, device, several_hosts=ranks > PER_HOST),
                phases=tuple(
                    Phase(name=phase, seconds=tuple(step[phase] for step in own[rank]))
                    for phase in PHASES
                    if several or phase not in ("waiting", "transfer")
                ),
                samples=(32,) * count,
            )
            for rank in range(ranks)
        ),
        waits=tuple(
            Wait(waiter=waiter, late=late, seconds=seconds)
            for (waiter, late), seconds in waits.items()
        ),
    )


def place(rank: int, device: str, *, several_hosts: bool = False) -> RankPlace:
    return RankPlace(
        rank=rank,
        host=host(rank) if several_hosts else host(0),
        device="cpu" if device == "cpu" else f"cuda:{rank % PER_HOST}",
    )


def host(rank: int) -> str:
    return f"node-{rank // PER_HOST + 1}"


def lines(ranks: int, *more: tuple[int, HotLine]) -> Lines:
    """The usual lines of each rank, after those that are given for some."""
    return Lines(
        ranks=tuple(
            RankLines(
                rank=rank,
                samples=100,
                lines=(
                    *(line for of, line in more if of == rank),
                    hot("loader", 38, "for images, labels in loader:"),
                    hot("forward", 41, "loss = criterion(model(images), labels)"),
                    hot("backward", 42, "loss.backward()"),
                    hot("optimizer", 43, "optimizer.step()"),
                    hot("rest", 45, "running += loss.item()"),
                ),
            )
            for rank in range(ranks)
        )
    )


def hot(phase: str, line: int, text: str, samples: int = 20) -> HotLine:
    return HotLine(
        phase=phase,
        file="/home/ada/vision/train.py",
        line=line,
        function="train",
        text=text,
        samples=samples,
    )


def run(ranks: int, *endings: RankEnding, command: tuple[str, ...] = ()) -> TrainingRun:
    """Every rank was stopped, but for those whose ending is given."""
    own = {one.rank: one for one in endings}
    return TrainingRun(
        command=command or ("train.py", "--epochs", "3", "--data", "/data/imagenet"),
        seconds=34.2,
        ranks=tuple(own.get(rank, ending(rank)) for rank in range(ranks)),
        optimizers=("AdamW",),
        framework="accelerate",
    )


def ending(rank: int) -> RankEnding:
    return RankEnding(
        rank=rank, host=host(rank), pid=4000 + rank, outcome="stopped", steps=72, time=33.0
    )


def memory(
    ranks: int, *, leak: float = 0.0, workers: bool = True, device: bool = True
) -> MemoryOverTime:
    """Of each rank; the last one's grows by so many MiB a step."""
    random = Random(3)
    grown = []
    for rank in range(ranks):
        more = leak if rank == ranks - 1 else 0.0
        base = 3000.0 + 20 * rank
        grown.append(
            Growth(
                rank=rank,
                host=host(rank),
                times=tuple(0.085 * step for step in range(COUNT)),
                steps=tuple(range(COUNT)),
                resident=tuple(base + more * step + random.uniform(0, 4) for step in range(COUNT)),
                workers=tuple(900 + random.uniform(0, 9) for _ in range(COUNT)) if workers else (),
                device=tuple(22_000.0 + rank for _ in range(COUNT)) if device else (),
            )
        )
    return MemoryOverTime(ranks=tuple(grown))


def late_rank(ranks: int = 8) -> Evidence:
    """One rank whose backward takes 30 ms longer; rank 0 writes a checkpoint now and then."""
    late = min(5, ranks - 1)
    slow = hot("backward", 117, "return slow_penalty(grad)", samples=41)
    return Evidence(
        (
            steps(ranks, GPU, {(late, "backward"): 0.03}, checkpoint_every=20),
            lines(ranks, (late, slow)),
            run(ranks),
            memory(ranks),
        )
    )


LOADER = "train.py:31"


def slow_loader() -> Evidence:
    """Two ranks on CPUs; rank 1 waits for its loader, which needs 3 workers and has 1."""
    return Evidence(
        (
            steps(2, CPU, {(0, "loader"): 0.047, (1, "loader"): 0.051}, device="cpu"),
            lines(2),
            run(2),
            memory(2, leak=0.4, device=False),
            Loading(loaders=tuple(loader(rank) for rank in range(2))),
            LoaderCurve(
                points=tuple(
                    CurvePoint(
                        rank=rank,
                        name=LOADER,
                        num_workers=workers,
                        seconds_per_batch=max(0.088 / workers, 0.0169) * (1 + 0.05 * rank),
                        batches=40,
                        start_seconds=0.11 + 0.02 * workers,
                    )
                    for rank in range(2)
                    for workers in (1, 2, 3, 4, 6, 8)
                )
            ),
        )
    )


def loader(rank: int) -> Loader:
    return loader_with(
        rank=rank,
        host=host(0),
        name=LOADER,
        dataset="Images",
        items=50_000,
        batches=782,
        num_workers=1,
        taken=COUNT,
    )


def failed() -> Evidence:
    """Rank 1 ran out of memory in its ninth judged step, and rank 0 waited in vain."""
    out_of_memory = RankEnding(
        rank=1,
        host=host(0),
        pid=4001,
        outcome="failed",
        steps=21,
        exit_code=1,
        exception="torch.OutOfMemoryError",
        message="CUDA out of memory. Tried to allocate 2.00 GiB. " + "GPU 1 has … " * 20,
        stack=(
            Frame(file="/a/train.py", line=80, function="main", text="train()", of_user=True),
            Frame(
                file="/a/train.py",
                line=41,
                function="train",
                text="loss = criterion(model(images), labels)",
                of_user=True,
            ),
            Frame(file="torch/nn/modules/module.py", line=1775, function="_call_impl"),
        ),
        time=9.1,
    )
    waiting = RankEnding(
        rank=0,
        host=host(0),
        pid=4000,
        outcome="hung",
        steps=21,
        time=39.0,
        doing="all_reduce",
        doing_seconds=29.8,
    )
    tried = Trials(
        trials=(
            trial("loader.num_workers=3", (0.088, 0.09), (0.047, 0.045)),
            trial("torch.threads=1", (0.088,), (None,), failure="no answer within 60 s"),
        )
    )
    return Evidence((steps(2, GPU, {}, count=9), run(2, waiting, out_of_memory), tried))


def trial(
    change: str,
    without: tuple[float | None, ...],
    with_it: tuple[float | None, ...],
    *,
    failure: str = "",
) -> Trial:
    return Trial(
        change=(change,),
        without=tuple(TrialTurn(seconds=seconds) for seconds in without),
        with_it=tuple(
            TrialTurn(seconds=seconds, failure="" if seconds else failure) for seconds in with_it
        ),
    )


def alone() -> Evidence:
    """One process, whose times are seconds."""
    slow = {phase: 30 * seconds for phase, seconds in CPU.items()}
    return Evidence((steps(1, slow, {}, device="cpu"), run(1)))


def hostile() -> Evidence:
    """Strings of a script, chosen to break a page or a terminal."""
    bad = HotLine(
        phase="forward",
        file=f"/{HOSTILE}|.py",
        line=1,
        function=HOSTILE,
        text=f"{HOSTILE} | \x1b[2J {'x' * 300}",
        samples=90,
    )
    end = RankEnding(
        rank=1,
        host=HOSTILE,
        pid=1,
        outcome="failed",
        steps=3,
        exception=HOSTILE,
        message=f"\x1b[2J \u202e {'x' * 300}",
    )
    point = CurvePoint(
        rank=0, name=HOSTILE, num_workers=1, seconds_per_batch=0.1, batches=9, start_seconds=0.1
    )
    return Evidence(
        (
            steps(2, CPU, {}),
            lines(2, (0, bad), (1, bad)),
            run(2, end, command=("train.py", HOSTILE, "x" * 300)),
            LoaderCurve(points=(point,)),
        )
    )
