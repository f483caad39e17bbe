"""Looks at live runs made by hand: what each rank's main thread was met at."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ddoctor.evidence.frames import Block, Frame
from ddoctor.evidence.live import Activity, LiveLink, LiveLook, LiveRank, LiveWorker
from tests.training_run import ENGINE, library, user

SECONDS = 10.0
TRAINING: Mapping[str, int] = {
    "forward": 30,
    "backward-or-wait": 45,
    "optimizer": 10,
    "loader": 5,
    "rest": 10,
}
"""Of a hundred samples, in a step that is as it should be."""
STARVED: Mapping[str, int] = {
    "loader-wait": 60,
    "forward": 15,
    "backward-or-wait": 20,
    "optimizer": 5,
}
"""The same, in a step that begins late for want of data."""
WAITING: Mapping[str, int] = {"forward": 15, "backward-or-wait": 80, "optimizer": 5}
"""The same, of a rank that waits for a later one; it sleeps most of that."""
LINE = user(40, "loss.backward()", "train")
FETCH = library("torch/utils/data/_utils/fetch.py", 54, "_MapDatasetFetcher.fetch")
LOOP = library("torch/utils/data/_utils/worker.py", 349, "_worker_loop")
READING = (LOOP, FETCH, user(12, "return decode(path)", "Items.__getitem__"))
COLLATING = (LOOP, FETCH, user(20, "return pad(items)", "collate"))
"""What a worker is met at."""


def moving(
    number: int,
    met: Mapping[str, int] = TRAINING,
    *,
    asleep: float = 0.1,
    workers: int = 0,
    visits: int = 20,
    line: Frame = LINE,
    makes: tuple[Frame, ...] = READING,
    wakes: int = 0,
) -> LiveRank:
    """A rank that goes from step to step; ``makes``: what its workers are met at."""
    most_first = sorted(met.items(), key=lambda item: -item[1])
    return LiveRank(
        rank=number,
        pid=100 + number,
        state="running",
        age_seconds=600.0,
        cpu_seconds=9.0,
        main_cpu_seconds=SECONDS * (1 - asleep),
        asleep=asleep,
        resident=900.0,
        wakes=wakes,
        samples=sum(met.values()),
        stack=(line,),
        activities=tuple(
            Activity(name=name, samples=samples, visits=visits, calls=(line,))
            for name, samples in most_first
        ),
        workers=tuple(
            LiveWorker(pid=200 + one, state="sleeping", cpu_seconds=4.0, stack=makes)
            for one in range(workers)
        ),
    )


def standing(
    number: int,
    activity: str,
    *stack: Frame,
    state: str = "sleeping",
    main_cpu: float = 0.0,
    workers: tuple[LiveWorker, ...] = (),
    within: tuple[Block, ...] = (),
) -> LiveRank:
    """A rank that was met at one place only."""
    return LiveRank(
        rank=number,
        pid=100 + number,
        state=state,
        age_seconds=600.0,
        cpu_seconds=main_cpu,
        main_cpu_seconds=main_cpu,
        asleep=1.0 - main_cpu / SECONDS,
        resident=900.0,
        samples=100,
        stack=stack,
        still=True,
        activities=(
            Activity(
                name=activity,
                samples=100,
                calls=tuple(frame for frame in stack if frame.of_user),
                within=within,
            ),
        ),
        workers=workers,
    )


def on_gpu(number: int, line: int, text: str, *inner: Frame) -> LiveRank:
    """A rank whose host spins until its GPU has come so far."""
    frames = (user(line, text, "train"), *inner)
    rank = standing(number, "gpu-wait", *frames, state="running", main_cpu=SECONDS)
    return msgspec.structs.replace(rank, on_gpu=True)


def block(line: int, end: int, text: str) -> Block:
    """A loop or a branch of the function ``train``."""
    return Block(
        file=LINE.file,
        function=LINE.function,
        loop=text.startswith(("for", "while")),
        text=text,
        line=line,
        end=end,
    )


def in_collective(
    number: int, function: str, line: int, within: tuple[Block, ...] = (), *, text: str = ""
) -> LiveRank:
    """A rank that waits in a collective which this line of the user's calls."""
    calling = user(line, text or f"dist.{function}(loss)", "train")
    inner = library("torch/distributed/distributed_c10d.py", 3252, function)
    return standing(number, "collective", calling, inner, within=within)


def in_reduction(number: int, within: tuple[Block, ...] = ()) -> LiveRank:
    """A rank that waits at the end of its backward pass for the gradients of the others."""
    return standing(number, "backward-or-wait", LINE, ENGINE, within=within)


def look(
    *ranks: LiveRank,
    seconds: float = SECONDS,
    host: str = "node-0",
    missing: tuple[int, ...] = (),
    supervised: bool = True,
    links: tuple[LiveLink, ...] = (),
) -> LiveLook:
    """All ranks of a job, on one host."""
    return LiveLook(
        host=host,
        job="port 29500",
        world=len(ranks) + len(missing),
        seconds=seconds,
        missing=missing,
        supervised=supervised,
        command=("train.py",),
        ranks=ranks,
        links=links,
    )


def loading_itself(number: int, items: int, collate: int, *, by: str = "collate") -> LiveRank:
    """A rank without workers: so many of a hundred samples in its dataset, and in ``by``."""
    way = {
        "__getitem__": user(12, "return decode(path)", "Items.__getitem__"),
        by: user(20, "return pad(items)", by),
    }
    made = tuple(
        Activity(
            name="loader",
            samples=samples,
            visits=20,
            calls=(LINE,) if name == "default_collate" else (LINE, way[name]),
            entered=1,
            makes=name,
        )
        for name, samples in (("__getitem__", items), (by, collate))
    )
    rank = moving(number, {"forward": 30, "backward-or-wait": 70 - items - collate})
    return msgspec.structs.replace(rank, samples=100, activities=(*rank.activities, *made))


def exchanging(
    number: int, samples: int, function: str, line: Frame, within: tuple[Block, ...] = ()
) -> LiveRank:
    """A rank with so many of a hundred samples in this function of torch.distributed."""
    rest = 100 - samples
    rank = moving(number, {"forward": rest // 3, "backward-or-wait": rest - rest // 3}, asleep=0.1)
    met = Activity(
        name="collective", samples=samples, visits=20, calls=(line,), within=within, makes=function
    )
    return msgspec.structs.replace(rank, samples=100, activities=(met, *rank.activities))
