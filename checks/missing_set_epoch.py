"""A DistributedSampler shuffles, but each epoch has the order of the first one.

The order follows from the sampler's seed and the number of the epoch, which only ``set_epoch``
changes. Without it every epoch shows the same batches in the same order, and each rank the same
part of the data for ever: no rank ever sees what the others were given first, and what shuffling is
for is lost. Nothing is slower for it, and the loss curve looks sound.

Seen from outside: the loss has the same small waves in each epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.evidence.loading import DataSeen, Loader, Loading
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

# A look into the loader before the training takes a batch; an epoch takes more.
AN_EPOCH = 2
# Fewer items than this come in the same order by accident (8! orders are 40,320).
ITEMS = 8


def same_order_again(
    loading: Loading, seen: DataSeen | None, run: TrainingRun | None
) -> Iterator[Finding]:
    found: dict[str, list[Loader]] = {}
    for one in loading.loaders:
        orders = _orders(one, seen)
        again = len(set(orders)) == 1 if len(orders) > 1 else one.seeded_by_epoch is False
        if one.shuffle and one.taken and again:
            found.setdefault(one.name, []).append(one)
    for name, loaders in found.items():
        orders = _orders(loaders[0], seen)
        shown = (
            f"{len(orders)} epochs began with the same batches in the same order"
            if len(orders) > 1
            else "set_epoch had not been called with another number when the second epoch began"
        )
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.CERTAIN if len(orders) > 1 else Confidence.LIKELY,
            because=f"the DistributedSampler of the loader at {name} shuffles, and {shown}",
            evidence=(
                Observation(
                    name="different orders",
                    value=1,
                    expected=max(2, len(orders)),
                    source="the epochs that were seen, and torch's DistributedSampler",
                ),
            ),
            fixes=(_fix(loaders[0], run),),
        )


def _orders(loader: Loader, seen: DataSeen | None) -> Sequence[tuple[str, ...]]:
    """How each epoch of a loader began, as far as several can be compared."""
    began = [
        one.batches
        for one in (seen.epochs if seen is not None else ())
        if (one.rank, one.name, one.by) == (loader.rank, loader.name, "indices")
        and (one.taken is None or one.taken >= AN_EPOCH)
    ]
    length = min(map(len, began), default=0)
    if length * (loader.batch_size or 1) < ITEMS:
        return ()
    return [batches[:length] for batches in began]


def _fix(loader: Loader, run: TrainingRun | None) -> Fix:
    prepared = run is not None and "accelerate" in run.framework
    return Fix(
        summary="tell the sampler the number of the epoch before each one",
        paste=(
            "for epoch in range(epochs):\n"
            f"    loader{'' if prepared else '.sampler'}.set_epoch(epoch)"
            f"  # the loader of {loader.name}, before it is iterated over\n"
            "    for batch in loader:\n"
            "        ..."
        ),
        language="python",
        caution="after a resume go on with the number of the epoch, not from 0 again",
    )
