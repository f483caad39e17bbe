"""The loaders of a sound run on 8 H100s: each batch is ready before its step."""

from __future__ import annotations

from ddoctor.evidence.loading import (
    CurvePoint,
    DataSeen,
    FirstBatches,
    Loader,
    LoaderCurve,
    Loading,
    WorkerRandomness,
)
from tests.healthy.host import HOST
from tests.healthy.probes import PLACES

LOADER = "train.py:31"
ITEMS, BATCH, WORKERS = 400_000, 8, 8
STEPS = 60
FIRST = 8
"""Batches of an epoch that were looked at."""

# One worker's time for a batch, of which it reads for a third.
ITEM, COLLATE = 0.11, 0.02
BATCH_SECONDS = BATCH * ITEM + COLLATE


def _wait(rank: int, step: int) -> float:
    return 0.0011 + 0.0001 * ((rank * 5 + step * 3) % 4)


SECTIONS = (
    Loading(
        loaders=tuple(
            Loader(
                rank=place.rank,
                host=HOST,
                name=LOADER,
                dataset="Tokens",
                kind="map",
                items=ITEMS,
                batch_size=BATCH,
                batches=ITEMS // BATCH // len(PLACES),
                num_workers=WORKERS,
                prefetch_factor=2,
                pin_memory=True,
                persistent_workers=True,
                context="fork",
                sampler="DistributedSampler",
                shuffle=True,
                replicas=len(PLACES),
                fetched=BATCH * (STEPS + 2 * WORKERS),
                fetch_seconds=BATCH * (STEPS + 2 * WORKERS) * ITEM,
                fetch_cpu_seconds=BATCH * (STEPS + 2 * WORKERS) * ITEM * 2 / 3,
                collated=STEPS + 2 * WORKERS,
                collate_seconds=(STEPS + 2 * WORKERS) * COLLATE,
                collate_cpu_seconds=(STEPS + 2 * WORKERS) * COLLATE,
                collate="default_collate",
                collate_in_main=0.0004,
                taken=STEPS,
                wait_seconds=tuple(_wait(place.rank, step) for step in range(STEPS)),
                wait_steps=tuple(range(STEPS)),
                starts=(0.12,),
                first_waits=(BATCH_SECONDS,),
                worker_memory=310.0,
                batch_bytes=BATCH * 4096 * 8,
                randomness=tuple(
                    WorkerRandomness(
                        worker=worker,
                        source=source,
                        first=f"{source}-{place.rank}-{worker}",
                        used=source == "torch",
                    )
                    for worker in range(WORKERS)
                    for source in ("random", "numpy.random", "torch")
                ),
            )
            for place in PLACES
        )
    ),
    LoaderCurve(
        points=tuple(
            CurvePoint(
                rank=place.rank,
                name=LOADER,
                num_workers=workers,
                seconds_per_batch=BATCH_SECONDS / workers * 1.03,
                batches=4 * workers,
                start_seconds=0.12 + BATCH_SECONDS,
            )
            for place in PLACES
            for workers in (4, 6, 8)
        )
    ),
    DataSeen(
        epochs=tuple(
            FirstBatches(
                rank=place.rank,
                name=LOADER,
                epoch=0,
                by=by,
                batches=tuple(f"{by}-{place.rank}-{batch}" for batch in range(FIRST)),
                workers=tuple(batch % WORKERS for batch in range(FIRST)),
                taken=STEPS + 10,
            )
            for place in PLACES
            for by in ("indices", "values")
        )
    ),
)
