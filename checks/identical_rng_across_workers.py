"""Several DataLoader workers draw the same random numbers.

Workers start as copies of one process. torch reseeds its own generator, ``random`` and
``numpy.random`` in each worker. It does not reseed a generator that the dataset stores as an
attribute, or undo a ``worker_init_fn`` that sets one fixed seed. Every worker then applies the same
sequence of augmentations, so the model sees fewer different ones.

Symptoms: no error; the model generalises worse.

To fix it, seed the generator in a ``worker_init_fn`` with the seed of the worker.
"""

# Above 150 lines: what workers start with, and two mistakes of the source.

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ddoctor.analysis.data_overlap import by_name, place
from ddoctor.analysis.script_source import (
    LOADER,
    evaluates,
    is_plain,
    shown,
    with_keywords,
    worker_count,
)
from ddoctor.analysis.versions import version
from ddoctor.evidence.known_software import within
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.loading import Loader, Loading
from ddoctor.evidence.script import Script
from ddoctor.evidence.software import Software
from ddoctor.evidence.source_facts import SourceSeed
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

SEEDED = {
    "numpy.random": "numpy.random.seed(torch.initial_seed() % 2**32)",
    "random": "random.seed(torch.initial_seed())",
    "torch": "torch.manual_seed(torch.utils.data.get_worker_info().seed)",
}
"""How a worker seeds each source; torch gives every worker a different seed."""


def same_state(loading: Loading) -> Iterator[Finding]:
    for loaders in by_name(loading).values():
        found: dict[str, list[tuple[Loader, Sequence[int]]]] = defaultdict(list)
        for loader in loaders:
            states: dict[tuple[str, str], list[int]] = defaultdict(list)
            for one in loader.randomness:
                if one.used:
                    states[one.source, one.first].append(one.worker)
            for (source, _), workers in states.items():
                if len(workers) > 1:
                    found[source].append((loader, workers))
        for source, rows in found.items():
            yield _finding(source, rows, place({one.rank for one, _ in rows}, loaders))


def in_the_source(script: Script, loading: Loading | None) -> Iterator[Finding]:
    """A dataset keeps a generator, which each worker copies; torch seeds only the global ones."""
    if loading is not None:
        return  # what was measured during the training is better evidence
    for loader in script.of(LOADER):
        made = loader.origin("dataset", 0)
        for one in script.datasets:
            drawn = one.generator is not None and made == (one.name,) and not one.shards_workers
            if one.generator is None or not drawn or "worker_init_fn" in loader.keywords:
                continue
            count = worker_count(loader)
            several = count is None or count > 1
            if several and "**" not in loader.keywords and "num_workers" in loader.keywords:
                generator = one.generator.text.partition("=")[0].strip()
                yield Finding(
                    severity=Severity.WARNING,
                    confidence=Confidence.LIKELY if count else Confidence.POSSIBLE,
                    because=(
                        f"{shown(one.generator)} makes one generator for the dataset, and each of "
                        f"the {count or 'several'} workers of {shown(loader.at)} gets a copy in "
                        "the same state"
                    ),
                    fixes=(
                        Fix.python(
                            summary="make a generator in each worker, from the worker's seed",
                            paste=(
                                "def seed_worker(worker):\n"
                                "    info = torch.utils.data.get_worker_info()\n"
                                f"    info.dataset.{generator.removeprefix('self.')} = "
                                "numpy.random.default_rng(info.seed)\n"
                                "\n" + with_keywords(loader, worker_init_fn="seed_worker")
                            ),
                            caution="use the type that the generator has now",
                        ),
                    ),
                )
                return


SEEDS_ALIKE = re.compile(r"lambda \w+: (?:[\w.]*random\.seed|torch\.manual_seed)\(\d+\)")


def _seed(loader: SourceCall, seeds: Mapping[str, SourceSeed]) -> SourceSeed | None:
    """What seeds the workers of a loader alike; None: nothing is known to do so."""
    made, text = loader.origin("worker_init_fn"), loader.keywords.get("worker_init_fn", "")
    if SEEDS_ALIKE.fullmatch(text):
        return SourceSeed(function=text, at=loader.at)
    return seeds.get(made[0]) if len(made) == 1 else None


def by_a_constant(script: Script, loading: Loading | None) -> Iterator[Finding]:
    """A function for the workers seeds all of them alike, or those of all ranks."""
    seeds = {one.function: one for one in script.constant_seeds}
    for loader in script.of(LOADER):
        seed = _seed(loader, seeds)
        if loading is None and seed is not None and not evaluates(loader):
            yield Finding(
                severity=Severity.NOTE if seed.by_worker else Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=(
                    f"{shown(seed.at)} gives worker N of {shown(loader.at)} the same seed on "
                    "every rank and in every epoch: each rank draws the same random numbers"
                    if seed.by_worker
                    else f"{shown(seed.at)} gives every worker of {shown(loader.at)} the same "
                    "seed, on every rank and in every epoch: they draw the same random numbers"
                ),
                fixes=(
                    Fix.python(
                        summary="seed each worker by the seed that torch gives it",
                        paste=(
                            "def seed_worker(worker):\n"
                            "    seed = torch.initial_seed() % 2**32\n"
                            "    numpy.random.seed(seed)\n"
                            "    random.seed(seed)"
                        ),
                        caution="torch.initial_seed() differs between ranks only if their "
                        "torch.manual_seed does",
                    ),
                ),
            )
            return


def of_an_old_torch(script: Script, launch: Launch, software: Software | None) -> Iterator[Finding]:
    """Before 1.9, torch gave all workers of an epoch the same state of numpy.random."""
    installed = version("torch", launch, software)
    if installed is None or not within(installed.value, "<1.9"):
        return
    for loader in script.of(LOADER):
        made, count = loader.origin("dataset", 0), worker_count(loader) or 0
        draws = [one for one in script.datasets if one.random and made == (one.name,)]
        if draws and count > 1 and "worker_init_fn" not in loader.keywords:
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.POSSIBLE,
                because=f"torch {installed.value} ({installed.at}) seeds numpy.random alike in the "
                f"{count} workers of {shown(loader.at)}, and {shown(draws[0].at)} draws random "
                "numbers; correct if it draws by torch or random alone",
                fixes=(
                    Fix.python(
                        summary="seed numpy in each worker",
                        paste="def seed_worker(worker):\n"
                        "    numpy.random.seed(torch.initial_seed() % 2**32)\n\n"
                        + with_keywords(loader, worker_init_fn="seed_worker"),
                    ),
                ),
            )
            return


def in_the_step(script: Script) -> Iterator[Finding]:
    """One seed for all ranks, and random numbers in each step of the training."""
    if not is_plain(script, "accelerate"):
        return
    for one in script.same_noise:
        yield Finding(
            title="All ranks draw the same random numbers in a step",
            severity=Severity.NOTE,
            confidence=Confidence.LIKELY,
            because=f"{shown(one.seed)} gives all ranks one seed, and {shown(one.at)} draws by it: "
            "the ranks have other samples and the same random numbers",
            fixes=(
                Fix.python(
                    summary="give each rank its own seed, once the model is made",
                    paste="torch.manual_seed(seed + torch.distributed.get_rank())",
                    caution="accelerate: set_seed(seed, device_specific=True)",
                ),
            ),
        )
        return


def _finding(source: str, rows: Sequence[tuple[Loader, Sequence[int]]], where: Where) -> Finding:
    loader, workers = rows[0]
    # Workers often shuffle a stream alike on purpose, and each then takes its shard.
    meant = loader.kind == "iterable"
    doubt = "; this is correct if they use it only to shuffle the stream alike" if meant else ""
    seeding = SEEDED.get(
        source,
        "info = torch.utils.data.get_worker_info()\n    info.dataset."
        f"{source.removeprefix('dataset.')} = numpy.random.default_rng(info.seed)",
    )
    return Finding(
        severity=Severity.NOTE if meant else Severity.WARNING,
        confidence=Confidence.POSSIBLE if meant else Confidence.CERTAIN,
        because=(
            f"{len(workers)} of the {loader.num_workers} workers of the DataLoader at "
            f"{loader.name} start with the same state of {source} and draw from it "
            f"(rank {loader.rank}, workers {', '.join(map(str, workers))}){doubt}"
        ),
        evidence=(
            Observation(
                name=f"different states of {source}",
                value=1 + loader.num_workers - len(workers),
                expected=loader.num_workers,
                source="a fingerprint in each worker, before its first batch",
            ),
        ),
        where=where,
        fixes=(
            Fix.python(
                summary=f"seed {source} in each worker",
                paste=(
                    "def seed_worker(worker):\n"
                    f"    {seeding}\n"
                    "\n"
                    f"DataLoader(…, worker_init_fn=seed_worker)  # {loader.name}"
                ),
                caution=""
                if source in SEEDED
                else f"use the type that {source} has now: also random.Random(info.seed), "
                "torch.Generator",
            ),
        ),
    )
