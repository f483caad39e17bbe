"""Several ranks train on the same samples, so they do the same work twice.

Without a DistributedSampler, the DataLoader of each rank iterates over the whole dataset. A sampler
with a wrong rank or number of replicas gives several ranks the same shard. The gradients then cover
fewer samples than the global batch size claims. An epoch takes as long as on one device, and the
model sees each sample several times per epoch.

Symptoms: the number of steps per epoch does not fall when GPUs are added.

To fix it, pass a ``DistributedSampler`` to the DataLoader, or prepare the loader with accelerate.
"""

# Above 150 lines: two ways to see equal data, and the doubts that lower the confidence.

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
        # Equal indices into different files are different samples, so the batch contents decide.
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
    """Each rank shuffles the whole dataset: no sampler splits it."""
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
                f"each of {len(loaders)} ranks iterates over all {first.items} items of "
                f"{first.dataset} at {name}, in a different order: correct only if each rank has a "
                "separate dataset"
            ),
            evidence=(_batches(first, len(loaders)),),
            fixes=(_fix(first, run),),
        )


def _worth_sharing(loaders: Sequence[Loader]) -> bool:
    """Whether the datasets have equal lengths, with more than one batch for each rank."""
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
        f"no sampler splits its {loader.items} items"
        if loader.replicas is None
        else f"its {loader.sampler} makes {loader.replicas} shards, and they take the same one"
    )
    if "values" in alike:
        doubt = ""
    elif alike:
        doubt = "; their labels are also equal, and the other values differ as if augmented"
    else:
        doubt = ", unless each rank opens a different dataset"
    return Finding(
        severity=Severity.WARNING if alike else Severity.NOTE,
        confidence=sure,
        because=(
            f"the DataLoader at {loader.name} gives the same items to {compared.who}, in all "
            f"{compared.batches} compared batches: {why}{doubt}"
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
        name="batches per epoch on each rank",
        value=loader.batches or 0,
        expected=-(-(loader.items or 0) // (size * ranks)),
        source=f"{loader.items} items, batches of {size}, {ranks} ranks",
    )


def _fix(loader: Loader, run: TrainingRun | None) -> Fix:
    if run is not None and "accelerate" in run.framework:
        return Fix(
            summary="split the data with accelerator.prepare",
            paste=f"loader = accelerator.prepare(loader)  # {loader.name}",
            language="python",
        )
    return Fix(
        summary="split the dataset with a DistributedSampler",
        paste=(
            "sampler = torch.utils.data.DistributedSampler(dataset, shuffle=True)\n"
            f"loader = DataLoader(dataset, batch_size={loader.batch_size or 1}, sampler=sampler, …)"
            f"  # {loader.name}, without shuffle=\n"
            "for epoch in range(epochs):\n"
            "    sampler.set_epoch(epoch)"
        ),
        language="python",
        caution=(
            "each step then covers more different samples: keep the global batch size, or scale "
            "the learning rate and its schedule"
        ),
    )
