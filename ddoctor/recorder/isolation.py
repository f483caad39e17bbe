"""The user's loader without the training: its speed with several numbers of workers."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from math import ceil
from time import perf_counter
from typing import Any

from torch.utils.data import DataLoader

from ddoctor.evidence.loading import CurvePoint

LIMIT_SECONDS = 20.0
POINT_SECONDS = 2.0
MOST_BATCHES = 60
FEWEST_BATCHES = 6
MOST_POINTS = 5
MOST_WORKERS = 64
# Workers that only wait need little of a CPU, but each takes memory, and time to be started.
MOST_PER_CPU = 8
COPIED = ("collate_fn", "pin_memory", "worker_init_fn", "multiprocessing_context")


def curve(
    loader: DataLoader[Any], name: str, batch_seconds: float, need: float
) -> Iterator[CurvePoint]:
    """Points around the smallest number of workers that delivers a batch every ``need`` seconds.

    The cost of a batch gives the first number; the next ones are one worker more or fewer.
    """
    deadline = perf_counter() + LIMIT_SECONDS
    tried: dict[int, float] = {}
    most = _most_workers()
    workers = min(most, max(1, ceil(batch_seconds / need)))
    while workers not in tried and len(tried) < MOST_POINTS and perf_counter() < deadline:
        with warnings.catch_warnings():
            # Of more workers than CPUs: it is tried on purpose, and not by the user.
            warnings.simplefilter("ignore")
            point = _point(loader, name, workers)
        if point is None:
            return
        yield point
        tried[workers] = point.seconds_per_batch
        if point.seconds_per_batch > need:
            # As much more as is missing, not one after the other.
            missing = ceil(workers * point.seconds_per_batch / need) - workers
            workers = min(most, workers + max(1, min(missing, workers)))
        elif workers > 1:
            workers -= 1


def _most_workers() -> int:
    """The limit for this rank if all ranks of the host try as many."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(MOST_WORKERS, MOST_PER_CPU * (os.cpu_count() or 1) // ranks))


def _point(loader: DataLoader[Any], name: str, workers: int) -> CurvePoint | None:
    alone = _copy(loader, workers)
    began = perf_counter()
    batches = _forever(alone)
    if next(batches, None) is None:
        return None
    start = perf_counter() - began
    # What was fetched ahead while the first one was on its way says nothing of the rate.
    for _ in range(workers * (alone.prefetch_factor or 2)):
        next(batches)
    taken, began = 0, perf_counter()
    while taken < MOST_BATCHES and (
        taken < FEWEST_BATCHES or perf_counter() - began < POINT_SECONDS
    ):
        next(batches)
        taken += 1
    seconds = perf_counter() - began
    batches.close()
    iterator: Any = alone._iterator
    with contextlib.suppress(AttributeError):
        iterator._shutdown_workers()
    return CurvePoint(
        rank=0,
        name=name,
        num_workers=workers,
        seconds_per_batch=seconds / taken,
        batches=taken,
        start_seconds=start,
    )


def _forever(loader: DataLoader[Any]) -> Any:
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            return


def _copy(loader: Any, workers: int) -> DataLoader[Any]:
    settings: dict[str, Any] = {
        **{name: getattr(loader, name) for name in COPIED},
        "num_workers": workers,
        "prefetch_factor": loader.prefetch_factor or 2,
        "persistent_workers": True,
    }
    if loader.batch_sampler is not None:
        settings["batch_sampler"] = loader.batch_sampler
    else:
        settings |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        if loader.sampler is not None and not hasattr(loader.dataset, "__iter__"):
            settings["sampler"] = loader.sampler
    return DataLoader(loader.dataset, **settings)
