"""An IterableDataset is not shared out: every rank, or every worker, reads the whole stream.

A sampler cannot share a stream out, so the dataset itself must give each rank, and each DataLoader
worker of a rank, a part of its own. Where it does not, all of them yield the same samples: an epoch
has every sample as many times as there are ranks or workers, and more of them teach nothing new.

Seen from outside: with more workers the epoch becomes longer instead of shorter.
"""

from __future__ import annotations

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
from ddoctor.evidence.loading import DataSeen, FirstBatches, Loader, Loading
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
                f"{compared.who} are given the same values by {loaders[0].dataset} at {name} in "
                f"all {compared.batches} batches that were compared"
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
                f"{len(group)} of the {loaders[0].num_workers} workers of the loader at {name} "
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


def _same_workers(one: FirstBatches) -> Sequence[tuple[int, ...]]:
    """Workers that made the same batches, in one epoch of one rank."""
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
        return Fix(
            summary="split the stream among the ranks; its shards go to the workers by themselves",
            paste=(
                "from datasets.distributed import split_dataset_by_node\n"
                "\n"
                "dataset = split_dataset_by_node(\n"
                "    dataset, rank=dist.get_rank(), world_size=dist.get_world_size()\n"
                f")  # before the DataLoader at {loader.name}"
            ),
            language="python",
            caution="evenly only where the number of its shards is a multiple of the ranks",
        )
    return Fix(
        summary=f"let {loader.dataset}.__iter__ take its own part",
        paste=(
            f"def __iter__(self):  # of {loader.dataset}\n"
            "    info = torch.utils.data.get_worker_info()\n"
            "    workers, worker = (info.num_workers, info.id) if info else (1, 0)\n"
            '    parts = int(os.environ["WORLD_SIZE"]) * workers\n'
            '    part = int(os.environ["RANK"]) * workers + worker\n'
            "    yield from itertools.islice(self.stream(), part, None, parts)\n"
            "    # self.stream() stands for what __iter__ yields now"
        ),
        language="python",
        caution="ranks may then differ by a batch: end the epoch after the same number on all",
    )
