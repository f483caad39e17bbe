"""Several ranks train on the same samples, so that they do the same work twice.

Without a sampler that shares the dataset out, each rank's DataLoader goes through all of it; and
with one that was given the wrong rank or number of ranks, several take the same part. The gradients
are then those of fewer samples than the batch size says, an epoch takes as long as on one device,
and the statistics are those of data seen several times.

Seen from outside: more GPUs, and the number of steps of an epoch remains the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from ddoctor.analysis.data_overlap import Compared, by_name, compare, confidence, synchronised
from ddoctor.evidence.loading import DataSeen, Loader, Loading
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

CONTENTS: tuple[Literal["values", "labels"], ...] = ("values", "labels")


def same_batches(
    seen: DataSeen,
    loading: Loading,
    wrapping: Wrapping | None,
    steps: Steps | None,
    run: TrainingRun | None,
) -> Iterator[Finding]:
    synced = synchronised(wrapping, steps)
    for name, loaders in by_name(loading).items():
        compared = compare(seen, name, "indices")
        if compared is None or not compared.groups or not _worth_sharing(loaders):
            continue
        sure = confidence(compared, loaders, synced)
        if sure is None:
            continue
        # The same numbers in another file are other samples: what is in the batches tells.
        alike = [by for by in CONTENTS if _agrees(compare(seen, name, by), compared)]
        known = any(one.name == name and one.by in CONTENTS for one in seen.epochs)
        if known and not alike:
            continue
        if "values" not in alike:
            sure = min(sure, Confidence.LIKELY)
        yield _finding(compared, loaders, sure, alike, run)


def all_of_it_on_every_rank(
    loading: Loading,
    seen: DataSeen | None,
    wrapping: Wrapping | None,
    steps: Steps | None,
    run: TrainingRun | None,
) -> Iterator[Finding]:
    """Each rank in an order of its own: the sampler shares nothing out."""
    if not synchronised(wrapping, steps) or (run is not None and run.framework):
        return
    for name, loaders in by_name(loading).items():
        first = loaders[0]
        whole = {
            one.items
            for one in loaders
            if one.items
            and one.batch_size
            and one.batches
            and one.replicas is None
            and one.sampler == "RandomSampler"
            and one.batches >= one.items // one.batch_size
        }
        compared = compare(seen, name, "indices") if seen is not None else None
        if (
            len(loaders) < 2
            or len(whole) != 1
            or not all(one.items in whole and one.sampler == first.sampler for one in loaders)
            or not _worth_sharing(loaders)
            or (compared is not None and compared.groups)
        ):
            continue
        yield Finding(
            severity=Severity.NOTE,
            confidence=Confidence.POSSIBLE,
            because=(
                f"each of {len(loaders)} ranks goes through all {first.items} items of "
                f"{first.dataset} at {name}, in an order of its own; unless each has a dataset of "
                "its own, an epoch is as long as on one device"
            ),
            evidence=(_batches(first, len(loaders)),),
            fixes=(_fix(first, run),),
        )


def _worth_sharing(loaders: Sequence[Loader]) -> bool:
    """Datasets of one length, with more than one batch for each rank."""
    first = loaders[0]
    return (
        first.kind == "map"
        and len({one.items for one in loaders}) == 1
        and (first.items or 0) > len(loaders) * (first.batch_size or 1)
    )


def _agrees(contents: Compared | None, indices: Compared) -> bool:
    return contents is not None and contents.groups == indices.groups


def _finding(
    compared: Compared,
    loaders: Sequence[Loader],
    sure: Confidence,
    alike: Sequence[str],
    run: TrainingRun | None,
) -> Finding:
    loader = loaders[0]
    why = (
        f"no sampler shares its {loader.items} items out"
        if loader.replicas is None
        else f"its {loader.sampler} makes {loader.replicas} parts, and they take the same one"
    )
    if "values" in alike:
        doubt = ""
    elif alike:
        doubt = "; the labels in them are the same as well, and the rest differs as if augmented"
    else:
        doubt = ", unless each of them opens a dataset of its own"
    return Finding(
        severity=Severity.WARNING if alike else Severity.NOTE,
        confidence=sure,
        because=(
            f"{compared.who} are given the same items by the loader at {loader.name} in all "
            f"{compared.batches} batches that were compared: {why}{doubt}"
        ),
        evidence=(
            Observation(name="sampler", value=loader.sampler, expected="DistributedSampler"),
            _batches(loader, len(compared.ranks)),
        ),
        where=compared.where(loaders),
        fixes=(_fix(loader, run),),
    )


def _batches(loader: Loader, ranks: int) -> Observation:
    size = loader.batch_size or 1
    return Observation(
        name="batches of an epoch on each rank",
        value=loader.batches or 0,
        expected=-(-(loader.items or 0) // (size * ranks)),
        source=f"{loader.items} items, batches of {size}, {ranks} ranks",
    )


def _fix(loader: Loader, run: TrainingRun | None) -> Fix:
    if run is not None and "accelerate" in run.framework:
        return Fix(
            summary="let accelerate share the loader out",
            paste=f"loader = accelerator.prepare(loader)  # {loader.name}",
            language="python",
        )
    return Fix(
        summary="give each rank its share by a DistributedSampler",
        paste=(
            "sampler = torch.utils.data.DistributedSampler(dataset, shuffle=True)\n"
            f"loader = DataLoader(dataset, batch_size={loader.batch_size or 1}, sampler=sampler, …)"
            f"  # {loader.name}, without shuffle=\n"
            "for epoch in range(epochs):\n"
            "    sampler.set_epoch(epoch)"
        ),
        language="python",
        caution=(
            "each step is then of more samples: keep the global batch size, or scale the learning "
            "rate and the schedule"
        ),
    )
