"""Several ranks train on the same samples, so they do the same work twice.

Without a DistributedSampler, the DataLoader of each rank iterates over the whole dataset. A sampler
with a wrong rank or number of replicas gives several ranks the same shard. The gradients then cover
fewer samples than the global batch size claims. An epoch takes as long as on one device, and the
model sees each sample several times per epoch.

Symptoms: the number of steps per epoch does not fall when GPUs are added.

To fix it, pass a ``DistributedSampler`` to the DataLoader, or prepare the loader with accelerate.
"""

# Above 150 lines: loaders with equal items, loops without a loader, and whole datasets on each rank
# have different evidence and fixes.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from ddoctor.analysis import random_splits
from ddoctor.analysis.data_overlap import by_name, compare, compare_inputs, confidence, synchronised
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.script_source import (
    EVALUATES,
    LOADER,
    PLAIN,
    SAMPLER,
    WRAPPERS,
    evaluates,
    is_plain,
    is_trained_on,
    shown,
    trains,
    with_keywords,
)
from ddoctor.analysis.unshared_loaders import OF_A_RANK, shares, unshared
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.loading import DataSeen, Loader, Loading
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import CollectiveCalls, Wrapping
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

CONTENTS: tuple[Literal["values", "labels"], ...] = ("values", "labels")


def same_batches(
    seen: DataSeen,
    loading: Loading,
    wrapping: Wrapping | None,
    steps: Steps | None,
    run: TrainingRun | None,
    calls: CollectiveCalls | None,
) -> Iterator[Finding]:
    synced = synchronised(wrapping, steps, calls)
    for name, loaders in by_name(loading).items():
        loader, compared = loaders[0], compare(seen, name, "indices")
        if compared is None or not compared.groups or not _worth_sharing(loaders, loading):
            continue
        sure = confidence(compared, loaders, synced)
        # Equal indices into different files are different samples, so the batch contents decide.
        contents = {by: compare(seen, name, by) for by in CONTENTS}
        alike = [by for by, one in contents.items() if one and one.groups == compared.groups]
        known = any(one.name == name and one.by in CONTENTS for one in seen.epochs)
        if sure is None or (known and not alike):
            continue
        why = f"its {loader.sampler} makes {loader.replicas} shards, and they take the same one"
        if loader.replicas is None:
            why = f"no sampler splits its {loader.items} items"
        if "labels" in alike and "values" not in alike:
            why += "; their labels are also equal, and the other values differ as if augmented"
        elif not alike:
            why += ", unless each rank opens a different dataset"
        yield Finding(
            severity=Severity.WARNING if alike else Severity.NOTE,
            confidence=sure if "values" in alike else min(sure, Confidence.LIKELY),
            because=(
                f"the DataLoader at {name} gives the same items to {compared.who}, in all "
                f"{compared.batches} compared batches: {why}"
            ),
            evidence=(
                Observation(name="sampler", value=loader.sampler, expected="DistributedSampler"),
                _batches(loader, len(compared.ranks)),
            ),
            where=compared.where(loaders),
            fixes=(_fix(loader, run),),
        )


def same_inputs(
    seen: DataSeen,
    loading: Loading,
    wrapping: Wrapping | None,
    steps: Steps,
    calls: CollectiveCalls | None,
) -> Iterator[Finding]:
    """No DataLoader gives the batches, and the model gets the same on several ranks."""
    compared = compare_inputs(seen)
    if compared is None or not compared.groups or any(one.taken for one in loading.loaders):
        return
    places = [rank.place for rank in steps.ranks]
    sure = confidence(compared, places, synchronised(wrapping, steps, calls))
    made = [one for rank in seen.inputs for one in rank.origins]
    # Random numbers that are made for each step stand for data that is not there.
    stand_in = all(one.random for one in seen.inputs) and not any(one.takes for one in made)
    if sure is None or stand_in:
        return
    at = next((f" at {one.file}:{one.line}" for one in made if not one.counts), "")
    yield Finding(
        severity=Severity.WARNING,
        confidence=min(sure, Confidence.LIKELY),
        because=(
            f"the batches that the loop makes{at} are the same on {compared.who}, in all "
            f"{compared.batches} compared calls of the model"
        ),
        evidence=(
            Observation(
                name="different first batches",
                value=len(compared.ranks) - sum(len(group) - 1 for group in compared.groups),
                expected=len(compared.ranks),
                source=f"contents on {len(compared.ranks)} ranks",
            ),
        ),
        where=compared.where(places),
        fixes=(
            Fix.python(
                summary="draw different samples on each rank: seed by the rank, or take a share",
                paste=(
                    "rank, world = dist.get_rank(), dist.get_world_size()\n"
                    "generator = torch.Generator().manual_seed(1000 + rank)\n"
                    "rows = torch.randint(len(data), (batch_size,), generator=generator)\n"
                    "# or, for data in order:\n"
                    "data = data[rank::world]"
                ),
                caution="the model itself needs the same seed on all ranks, or DDP's broadcast",
            ),
        ),
    )


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
        whole = all(
            one.batch_size
            and one.batches
            and one.replicas is None
            and one.sampler == "RandomSampler"
            and one.batches >= (one.items or 0) // one.batch_size
            for one in loaders
        )
        compared = compare(seen, name, "indices") if seen is not None else None
        alike = compared is not None and compared.groups
        if len(loaders) < 2 or not whole or alike or not _worth_sharing(loaders, loading):
            continue
        same = first.data != "" and len({one.data for one in loaders}) == 1
        yield Finding(
            severity=Severity.WARNING if same else Severity.NOTE,
            confidence=Confidence.LIKELY if same else Confidence.POSSIBLE,
            because=(
                f"each of {len(loaders)} ranks iterates over all {first.items} items of "
                f"{first.dataset} at {name}, in a different order"
                + (
                    f": an epoch trains on each item {len(loaders)} times"
                    if same
                    else ": correct only if each rank has a separate dataset"
                )
            ),
            evidence=(_batches(first, len(loaders)),),
            fixes=(_fix(first, run),),
        )


def in_the_source(script: Script, seen: DataSeen | None) -> Iterator[Finding]:
    """Nothing in the script gives each rank its own samples."""
    if seen is not None:
        return  # what was measured during the training is better evidence
    loaders = script.of(LOADER)
    training = [one for one in loaders if not evaluates(one)]
    splits = [one for one in script.splits if not EVALUATES.search(one.text.replace("_", " "))]
    if not trains(script) or splits or not is_plain(script) or any(map(shares, training)):
        return
    if any(one.iterable or one.shards for one in script.datasets):
        return
    wrapped = script.of(*WRAPPERS)[0]
    for loader in [one for one in training if one.on_all_ranks][:1]:
        data = loader.argument("dataset", 0) or "dataset"
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.POSSIBLE,
            because=(
                f"{shown(loader.at)} has no sampler, and no line of the script gives each rank a "
                f"different part of the data, although {shown(wrapped.at)} trains on all ranks "
                "together; correct only if each rank reads different files"
            ),
            fixes=(
                Fix.python(
                    summary="share the samples out by a DistributedSampler",
                    paste=(
                        f"sampler = torch.utils.data.DistributedSampler({data})\n"
                        f"{with_keywords(loader, sampler='sampler', shuffle=None)}\n"
                        "for epoch in range(epochs):\n"
                        "    sampler.set_epoch(epoch)"
                    ),
                    caution="the sampler shuffles, so the DataLoader must not",
                ),
            ),
        )


def by_a_framework(plan: LaunchPlan, script: Script, seen: DataSeen | None) -> Iterator[Finding]:
    """Ray Train or Lightning would share the samples out, and the script does not let it."""
    found = unshared(plan, script)
    if seen is not None or found is None:
        return
    loader, trainer = found
    by_ray = "ray" in trainer.name
    data = loader.argument("dataset", 0) or "dataset"
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.POSSIBLE,
        because=(
            f"{shown(loader.at)} has no sampler, and "
            + (
                f"no line hands it to prepare_data_loader, although {trainer.at.place} starts"
                if by_ray
                else f"{trainer.at.place} lets Lightning add none, although it trains on"
            )
            + f" {plan.ranks} ranks: each of them reads all samples; correct only if each rank "
            "reads different files"
        ),
        fixes=(
            Fix.python(
                summary="let Ray share the samples out",
                paste="loader = ray.train.torch.prepare_data_loader(loader)",
            )
            if by_ray
            else Fix.python(
                summary="let Lightning add the sampler, or give the DataLoader one",
                paste="Trainer(use_distributed_sampler=True, …)\n"
                f"# or: sampler=torch.utils.data.DistributedSampler({data})",
            ),
        ),
    )


def by_a_plain_sampler(script: Script, seen: DataSeen | None) -> Iterator[Finding]:
    """A DataLoader of the training has a sampler that draws from all items on every rank."""
    trains = any(loop.kind == "training" for loop in script.loops)
    plain = {one.loader.place: one for one in script.plain_samplers}
    loaders = [one for one in script.of(LOADER) if not evaluates(one) and one.on_all_ranks]
    others = [one for one in loaders if one.at.place not in plain and shares(one)]
    samplers = re.compile(r"sampler", re.IGNORECASE)
    splits = [one for one in script.splits if not samplers.search(one.text)]
    if seen is not None or not trains or splits or others or not is_plain(script):
        return
    wrapped = script.of(*WRAPPERS)[0]
    for loader in [one for one in loaders if one.at.place in plain][:1]:
        if OF_A_RANK.search(f"{loader.argument('dataset', 0)} {loader.values}"):
            return
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(plain[loader.at.place].at)} draws from all items on every rank, although "
                f"{shown(wrapped.at)} trains on all ranks together: an epoch trains on each item "
                "once per rank"
            ),
            fixes=(
                Fix.python(
                    summary="share the samples out by a DistributedSampler",
                    paste=(
                        "sampler = torch.utils.data.DistributedSampler(dataset)\n"
                        f"loader = DataLoader(dataset, …, sampler=sampler)  # {loader.at.place}\n"
                        "for epoch in range(epochs):\n"
                        "    sampler.set_epoch(epoch)"
                    ),
                    caution="with weights, let each rank take every Nth of the drawn indices",
                ),
            ),
        )


def by_a_random_split(script: Script, launch: Launch | None) -> Iterator[Finding]:
    """Each rank draws the split of the dataset for itself."""
    several = launch is not None and (launch.ranks or 1) > 1
    if (script.of(*WRAPPERS) or (several and trains(script))) and not script.unseen:
        yield from (random_splits.told(one) for one in script.random_splits[:1])


def by_a_generator(script: Script, seen: DataSeen | None) -> Iterator[Finding]:
    """The script's own generator of batches knows nothing of ranks."""
    if seen is not None or script.splits or script.of(LOADER) or not is_plain(script):
        return
    for one in script.own_batches[:1]:
        wrapped = script.of(*WRAPPERS)[0]
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.POSSIBLE,
            because=(
                f"{shown(one.loop)} trains on what {shown(one.at)} yields, which asks for no rank, "
                f"although {shown(wrapped.at)} trains on all ranks together; correct only if each "
                "rank reads different files"
            ),
            fixes=(
                Fix.python(
                    summary="give each rank every Nth batch",
                    paste=(
                        "rank, world = dist.get_rank(), dist.get_world_size()\n"
                        "batches = itertools.islice(batches, rank, None, world)"
                    ),
                    caution="each rank still reads all of it; sharing the files out reads less",
                ),
            ),
        )


def by_another_number(script: Script, launch: Launch | None) -> Iterator[Finding]:
    """A sampler gets the number of the host, or that within the host, as the rank among all."""
    hosts = (launch.hosts or 1) if launch is not None else 1
    for one in script.of(SAMPLER):
        given = one.argument("rank", 2) or ""
        words = set(re.split(r"[\W_]+", given.lower()))
        replicas = one.argument("num_replicas", 1) or "world"
        of_host = "node" in words or (hosts > 1 and {"local", "rank"} <= words)
        counted = re.search("world|size", replicas, re.IGNORECASE)
        if (of_host and counted) or (given.isdigit() and not evaluates(one)):
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=(
                    f"{shown(one.at)} takes {given} for the rank among all: several ranks have the "
                    "same number, and read the same samples"
                ),
                fixes=(
                    Fix.python(
                        summary="leave both numbers to the sampler: it asks the process group",
                        paste=with_keywords(one, rank=None, num_replicas=None),
                    ),
                ),
            )
            return


def by_another_seed(script: Script) -> Iterator[Finding]:
    """Each rank shuffles all samples in another order, so their parts overlap."""
    for one in script.of(SAMPLER):
        seed = one.argument("seed", 4) or ""
        if "rank" in re.split(r"[\W_]+", seed.lower()) and not evaluates(one):
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=(
                    f"{shown(one.at)} shuffles by `{seed}`, another seed on each rank: the ranks "
                    "take their parts from different orders, so some samples are read by several "
                    "ranks in an epoch, and others by none"
                ),
                fixes=(
                    Fix.python(
                        summary="give the samplers of all ranks the same seed",
                        paste=with_keywords(one, seed=None),
                    ),
                ),
            )
            return


def without_a_loader(script: Script, seen: DataSeen | None) -> Iterator[Finding]:
    """The script makes a sampler for each rank's part, and gives it to no loader."""
    loaders = [one for one in script.of(LOADER) if not evaluates(one)]
    plain = [one for one in loaders if not {"sampler", "batch_sampler", "**"} & {*one.keywords}]
    samplers = script.of(SAMPLER)
    unused = [one for one in samplers if one.at in script.unused_samplers and not evaluates(one)]
    if seen is not None or not unused or len(plain) != 1 or not is_plain(script):
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{shown(plain[0].at)} gets no sampler, and no line gives {shown(unused[0].at)} to "
            "anything: each rank reads all samples"
        ),
        fixes=(
            Fix.python(
                summary="give the sampler to the loader",
                paste=with_keywords(plain[0], shuffle=None, sampler=unused[0].assigned),
            ),
        ),
    )


def not_prepared(script: Script, seen: DataSeen | None) -> Iterator[Finding]:
    """accelerate splits the DataLoaders that it prepares, and the training uses another one."""
    prepared = _prepared(script) if seen is None else ()
    if not prepared:
        return
    for loader in script.of(LOADER):
        name = loader.assigned
        shares = {"sampler", "batch_sampler"} & {*loader.keywords}
        trains = is_trained_on(loader, script) and not evaluates(loader)
        if trains and name not in prepared and not shares:
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=(
                    f"{shown(loader.at)} is not among what accelerator.prepare gets "
                    f"({', '.join(prepared)}), so every rank trains on all of its data"
                ),
                fixes=(
                    Fix.python(
                        summary="prepare it as well",
                        paste=f"{name} = accelerator.prepare({name})",
                        caution="accelerate then also moves the batches to the device",
                    ),
                ),
            )
            return


def evaluation_not_prepared(script: Script, seen: DataSeen | None) -> Iterator[Finding]:
    """accelerate splits the data of the training, and every rank reads all of another loader."""
    prepared = _prepared(script) if seen is None else ()
    loaders = script.of(LOADER)
    if not any(one.assigned in prepared and not evaluates(one) for one in loaders):
        return
    for loader in loaders:
        name = loader.assigned
        read = next((one.at for one in script.whole_reads if one.loader == loader.at), None)
        whole = read is not None and evaluates(loader) and not shares(loader)
        if read is not None and whole and name and name not in prepared:
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.LIKELY,
                because=f"{shown(loader.at)} is not among what accelerator.prepare gets "
                f"({', '.join(prepared)}), so every rank reads all of it at {read.place}",
                fixes=(
                    Fix.python(
                        summary="prepare it as well, and gather the results of all ranks",
                        paste=f"{name} = accelerator.prepare({name})\n"
                        "predictions, labels = accelerator.gather_for_metrics("
                        "(predictions, labels))",
                        caution="accelerate then also moves the batches to the device",
                    ),
                ),
            )
            return


def _prepared(script: Script) -> Sequence[str]:
    """What accelerate prepares; empty: nothing, or something else may share data out as well."""
    names = [name for one in script.of(".prepare") for name in one.arguments]
    alone = {one.framework for one in script.imports} - PLAIN == {"accelerate"}
    by_loader = any("prepare_data_loader" in one.name for one in script.calls)
    other = bool(script.splits or script.unseen) or by_loader
    starred = any(name.startswith("*") for name in names)
    return () if other or starred or not alone else names


def not_set_up(script: Script, seen: DataSeen | None) -> Iterator[Finding]:
    """Fabric splits the DataLoaders that it sets up, and the training uses another one."""
    models = [one for one in script.of(".setup") if one.on.rpartition(".")[2] == "fabric"]
    splits = script.splits or script.of(".setup_dataloaders")
    if seen is not None or not models or splits or not is_plain(script, "Lightning"):
        return
    for loader in script.of(LOADER):
        shares = {"sampler", "batch_sampler", "**"} & {*loader.keywords}
        if is_trained_on(loader, script) and not evaluates(loader) and not shares:
            name = loader.assigned
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=(
                    f"{shown(loader.at)} is not set up by Fabric, and has no sampler, so every "
                    "rank trains on all of its data"
                ),
                fixes=(
                    Fix.python(
                        summary="let Fabric set it up",
                        paste=f"{name} = fabric.setup_dataloaders({name})",
                        caution="Fabric then also moves the batches to the device",
                    ),
                ),
            )
            return


def evaluation_in_the_source(script: Script, seen: DataSeen | None) -> Iterator[Finding]:
    """The training data are shared out, and those of the evaluation are not."""
    loaders = script.of(LOADER)
    whole = [
        one
        for one in loaders
        if evaluates(one)
        and one.on_all_ranks
        and not shares(one)
        # A part by the number of ranks: `range(gpu, len(data), world)`.
        and "world" not in one.held("dataset", 0)
    ]
    shared = [one for one in loaders if not evaluates(one) and shares(one)]
    if seen is not None or not is_plain(script) or not shared or not whole:
        return
    yield Finding(
        title="Several ranks evaluate the same samples, so they do the same work twice",
        severity=Severity.NOTE,
        confidence=Confidence.POSSIBLE,
        because=f"{shown(whole[0].at)} has no sampler, unlike {shared[0].at.place}: each rank that "
        "evaluates reads all of it, and the others wait if only one does",
        fixes=(
            Fix.python(
                summary="share the evaluation out, and add up its counts over the ranks",
                paste=(
                    f"data = {whole[0].argument('dataset', 0) or 'dataset'}\n"
                    "sampler = torch.utils.data.DistributedSampler(data, shuffle=False)\n"
                    f"{with_keywords(whole[0], sampler='sampler', shuffle=None)}\n"
                    "torch.distributed.all_reduce(counts)"
                ),
                caution="the sampler repeats samples if they do not divide by the ranks",
            ),
        ),
    )


def _worth_sharing(loaders: Sequence[Loader], loading: Loading) -> bool:
    """Whether the datasets have equal lengths, with more than one batch for each rank.

    Where the model gets the batches of another loader, these may serve an evaluation.
    """
    first = loaders[0]
    aside = not any(one.reaches for one in loaders) and any(one.reaches for one in loading.loaders)
    return (
        not aside
        and first.kind == "map"
        and len({one.items for one in loaders}) == 1
        and (first.items or 0) > len(loaders) * (first.batch_size or 1)
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
    if run is not None and run.framework == "accelerate":
        return Fix.python(
            summary="split the data with accelerator.prepare",
            paste=f"loader = accelerator.prepare(loader)  # {loader.name}",
        )
    return Fix.python(
        summary="split the dataset with a DistributedSampler",
        paste=(
            "sampler = torch.utils.data.DistributedSampler(dataset, shuffle=True)\n"
            f"loader = DataLoader(dataset, batch_size={loader.batch_size or 1}, sampler=sampler, …)"
            f"  # {loader.name}, without shuffle=\n"
            "for epoch in range(epochs):\n"
            "    sampler.set_epoch(epoch)"
        ),
        caution=(
            "each step then covers more different samples: keep the global batch size, or scale "
            "the learning rate and its schedule"
        ),
    )
