"""The statistics of the loaders, gathered on request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from ddoctor.evidence.loading import FirstBatches, Loader
from ddoctor.recorder import workers
from ddoctor.recorder.loaders import Seen
from ddoctor.recorder.recorded import LoaderFacts


def loading(seen: Iterable[Seen]) -> Iterator[LoaderFacts]:
    """Each loader that fed the training."""
    for one in seen:
        if one.in_training and one.settings is not None:
            yield LoaderFacts(
                loader=_loader(one.settings, one),
                waits=tuple(one.waits),
                preparing=tuple(one.preparing.times),
                epochs=tuple(_epochs(one)),
            )


def _loader(settings: Loader, seen: Seen) -> Loader:
    totals: dict[str, float] = dict.fromkeys(workers.FIELDS, 0.0)
    for slots in seen.slots:
        for name, value in slots.totals().items():
            totals[name] += value
    seeds = [epoch.seed for epoch in seen.epochs]
    seeded = settings.replicas is not None and len(seeds) > 1
    return replace(
        settings,
        seeded_by_epoch=len(set(seeds)) == len(seeds) if seeded else None,
        fetched=int(totals["items"]),
        fetch_seconds=totals["item_seconds"],
        fetch_cpu_seconds=totals["item_cpu"],
        collated=int(totals["batches"]),
        collate_seconds=totals["collate_seconds"],
        collate_cpu_seconds=totals["collate_cpu"],
        starts=tuple(epoch.start for epoch in seen.epochs),
        first_waits=tuple(
            epoch.first_wait for epoch in seen.epochs if epoch.first_wait is not None
        ),
        epoch_batches=tuple(epoch.batches for epoch in seen.epochs if epoch.ended),
        batch_bytes=seen.batch_bytes,
        randomness=seen.slots[0].randomness(seen.sources) if seen.slots else (),
    )


def _epochs(seen: Seen) -> Iterator[FirstBatches]:
    for number, epoch in enumerate(seen.epochs):
        several = seen.slots[-1].workers if seen.slots else 0
        prints = {"indices": epoch.indices, "values": epoch.values, "labels": epoch.labels}
        for by, printed in prints.items():
            if printed and all(printed):
                yield FirstBatches(
                    rank=0,
                    name=seen.name,
                    epoch=number,
                    by=by,  # type: ignore[arg-type]
                    batches=tuple(printed),
                    workers=tuple(one % several for one in range(len(printed))) if several else (),
                    taken=epoch.batches,
                )
