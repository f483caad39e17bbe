"""An IterableDataset is not sharded: every rank, or every worker, reads the whole stream.

A sampler cannot shard a stream, so the dataset must give each rank, and each DataLoader worker of a
rank, a different part. Otherwise all of them yield the same samples. An epoch then contains every
sample once per rank or worker, which adds time but no information.

Symptoms: with more workers an epoch gets longer instead of shorter.

To fix it, shard by rank and worker in ``__iter__``, or use ``split_dataset_by_node`` of Hugging
Face datasets.
"""

# Above 150 lines: ranks and workers are compared by what they read, and the source shows both at
# once.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.analysis.data_overlap import (
    LEAST,
    alike,
    by_name,
    compare,
    confidence,
    place,
    synchronised,
)
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.script_source import (
    LOADER,
    evaluates,
    is_plain,
    shown,
    started_workers,
    with_keywords,
)
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.loading import DataSeen, FirstBatches, Loader, Loading
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceDataset
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity


def among_ranks(
    seen: DataSeen, loading: Loading, wrapping: Wrapping | None, steps: Steps | None
) -> Iterator[Finding]:
    synced = synchronised(wrapping, steps)
    for name, loaders in by_name(loading).items():
        compared = compare(seen, name, "values")
        if loaders[0].kind != "iterable" or compared is None or not compared.groups:
            continue
        sure = confidence(compared, loaders, synced)
        if sure is None:
            continue
        yield Finding(
            severity=Severity.WARNING,
            confidence=sure,
            because=(
                f"{loaders[0].dataset} at {name} gives the same values to {compared.who}, in "
                f"all {compared.batches} compared batches"
            ),
            evidence=(
                Observation(
                    name="different streams of data",
                    value=len(compared.ranks) - sum(len(group) - 1 for group in compared.groups),
                    expected=len(compared.ranks),
                    source="fingerprints of the tensors",
                ),
            ),
            where=compared.where(loaders),
            fixes=(_fix(loaders[0]),),
        )


def among_workers(seen: DataSeen, loading: Loading) -> Iterator[Finding]:
    for name, loaders in by_name(loading).items():
        if loaders[0].kind != "iterable":
            continue
        found = {
            one.rank: group
            for one in seen.epochs
            if one.name == name and one.by == "values"
            for group in _same_workers(one)
        }
        if not found:
            continue
        rank, group = min(found.items())
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.CERTAIN,
            because=(
                f"{len(group)} of the {loaders[0].num_workers} workers of the DataLoader at {name} "
                f"yield the same batches of {loaders[0].dataset} (rank {rank}, workers "
                f"{', '.join(map(str, group))})"
            ),
            evidence=(
                Observation(
                    name="workers with the same stream",
                    value=len(group),
                    expected=1,
                    source="fingerprints of the tensors",
                ),
            ),
            where=place(found, loaders),
            fixes=(_fix(loaders[0]),),
        )


def in_the_source(
    script: Script, seen: DataSeen | None, launch: Launch | None
) -> Iterator[Finding]:
    if seen is not None:
        return  # what was measured during the training is better evidence
    alone = is_plain(script) or _by_lightning(script, launch)
    for loader in script.of(LOADER):
        made = loader.origin("dataset", 0)
        streams = [one for one in script.datasets if one.iterable and made == (one.name,)]
        several = (
            started_workers(loader, launch) or 0
        ) > 1 and "worker_init_fn" not in loader.keywords
        for stream in streams[:1]:
            ranks = alone and not script.splits and not stream.shards_ranks
            by_worker = stream.shards_workers and not stream.shards_ranks
            if alone and by_worker and _knows_no_rank(loader, script):
                yield _without_rank(stream, loader)
                return
            if several and _takes_files_of_its_rank(stream, script):
                yield _without_worker(stream, loader)
                return
            draws = stream.random and stream.fixed is None
            # Such as a stream of Hugging Face that is shuffled by a seed with the rank.
            by_rank = "rank" in loader.held("dataset", 0)
            if stream.shards or stream.plays or by_rank or draws or not (several or ranks):
                continue
            order = f", in the order of one seed ({stream.fixed.place})" if stream.fixed else ""
            who = "rank and worker" if several and ranks else "worker" if several else "rank"
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=(
                    f"{shown(stream.at)} asks neither for its rank nor for its worker, so with "
                    f"{shown(loader.at)} every {who} reads the whole stream{order}"
                ),
                fixes=(_shard(stream.name.rpartition(".")[2]),),
            )
            return


def _takes_files_of_its_rank(stream: SourceDataset, script: Script) -> bool:
    """Whether its lines select by the rank alone, and its workers read the same.

    Workers that draw from a stream without an end differ, unless one seed orders it for all.
    """
    own = (one for one in script.splits if one.file == stream.at.file and "self." in one.text)
    ends = not stream.shards_workers and (stream.alike or not stream.endless)
    return stream.shards_ranks and ends and any("::" in one.text for one in own)


def _knows_no_rank(loader: SourceCall, script: Script) -> bool:
    """Whether no rank gets to a stream of the user: not as an argument, and not with its files."""
    given = f"{loader.argument('dataset', 0)} {loader.held('dataset', 0)}"
    # A seed by the rank changes the order of the stream, and not its parts.
    given = re.sub(r"\bseed=[^,)]*", "", given)
    cuts = any("[" in one.text or "split" in one.text for one in script.splits)
    return not cuts and not re.search(r"rank|world|replica|procid", given, re.I)


def _by_lightning(script: Script, launch: Launch | None) -> bool:
    """Whether Lightning trains on several ranks; it gives a stream no sampler.

    Source: lightning/pytorch/trainer/connectors/data_connector.py,
    _requires_distributed_sampler.
    """
    plan = LaunchPlan(launch=launch) if launch is not None else None
    # A strategy is given for several ranks, where their number is not known.
    several = plan is not None and (plan.ranks > 1 if plan.ranks else bool(plan.strategy))
    return several and is_plain(script, "Lightning") and not script.of(".setup_dataloaders")


def _without_rank(stream: SourceDataset, loader: SourceCall) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{shown(stream.at)} asks for its worker and not for its rank, and no line gives each "
            f"rank a part: with {shown(loader.at)} all ranks read the same stream"
        ),
        fixes=(_shard(stream.name.rpartition(".")[2]),),
    )


def _without_worker(stream: SourceDataset, loader: SourceCall) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{shown(stream.at)} asks for its rank and not for its worker: each worker of "
            f"{shown(loader.at)} reads the whole part of its rank"
        ),
        fixes=(_shard(stream.name.rpartition(".")[2]),),
    )


def a_hub_stream(script: Script, seen: DataSeen | None) -> Iterator[Finding]:
    """A dataset of Hugging Face that is streamed, and that nothing splits between the ranks."""
    streams = [
        one
        for one in script.of("datasets.load_dataset")
        if one.keywords.get("streaming") == "True" and one.on_all_ranks and not evaluates(one)
    ]
    loads = script.of(LOADER)
    if seen is not None or not streams or not loads or script.splits or not is_plain(script):
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{shown(streams[0].at)} streams the same samples to every rank: no line splits them, "
            f"and the DataLoader at {loads[0].at.place} shares them out between its workers only"
        ),
        fixes=(_split_at("before the DataLoader"),),
    )


def of_webdataset(script: Script, launch: Launch | None) -> Iterator[Finding]:
    """WebDataset refuses to run on several ranks unless something splits its shards.

    Source: webdataset/shardlists.py, single_node_only, the default of ``nodesplitter``.
    """
    ranks = LaunchPlan(launch=launch).ranks if launch is not None else None
    told = ("nodesplitter", "resampled", "**")
    streams = [
        one
        for one in script.of("webdataset.WebDataset")
        if not any(word in one.keywords for word in told) and one.on_all_ranks
    ]
    if not streams or (ranks or 0) < 2 or not is_plain(script, "WebDataset"):
        return
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=(
            f"{shown(streams[0].at)} has no nodesplitter, and {ranks} ranks read it: WebDataset "
            "then raises ValueError"
        ),
        fixes=(
            Fix.python(
                summary="share the shards out between the ranks",
                paste=with_keywords(streams[0], nodesplitter="wds.split_by_node"),
            ),
        ),
    )


def _same_workers(one: FirstBatches) -> Sequence[tuple[int, ...]]:
    """Groups of workers with the same batches, in one epoch of one rank."""
    made: dict[int, list[str]] = {}
    for worker, batch in zip(one.workers, one.batches, strict=False):
        made.setdefault(worker, []).append(batch)
    length = min(map(len, made.values()), default=0)
    firsts = {worker: batches[:length] for worker, batches in made.items()}
    if length < LEAST or any(len(set(batches)) == 1 for batches in firsts.values()):
        return ()
    return alike(firsts)


def _fix(loader: Loader) -> Fix:
    if loader.dataset == "IterableDataset":  # The class of Hugging Face datasets.
        return _split_at(f"before the DataLoader at {loader.name}")
    return _shard(loader.dataset)


def _split_at(place: str) -> Fix:
    return Fix.python(
        summary="split the stream between the ranks; datasets does so between workers",
        paste=(
            "from datasets.distributed import split_dataset_by_node\n"
            "\n"
            "dataset = split_dataset_by_node(\n"
            "    dataset, rank=dist.get_rank(), world_size=dist.get_world_size()\n"
            f")  # {place}"
        ),
        caution="splits evenly only if the number of shards is a multiple of the ranks",
    )


def _shard(dataset: str) -> Fix:
    return Fix.python(
        summary=f"shard the stream in {dataset}.__iter__",
        paste=(
            f"def __iter__(self):  # of {dataset}\n"
            "    info = torch.utils.data.get_worker_info()\n"
            "    workers, worker = (info.num_workers, info.id) if info else (1, 0)\n"
            '    parts = int(os.environ["WORLD_SIZE"]) * workers\n'
            '    part = int(os.environ["RANK"]) * workers + worker\n'
            "    yield from itertools.islice(self.stream(), part, None, parts)\n"
            "    # self.stream() stands for what __iter__ yields now"
        ),
        caution="ranks may differ by one batch: end the epoch after the same number on all ranks",
    )
