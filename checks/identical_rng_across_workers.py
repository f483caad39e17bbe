"""Several DataLoader workers draw the same random numbers.

Workers begin as copies of one process. torch seeds its own generator, ``random`` and
``numpy.random`` anew in each of them, but not a generator that the dataset keeps as an attribute,
and not what a ``worker_init_fn`` sets to one number. Every worker then applies the same sequence of
augmentations, so that there are as many fewer different ones as there are workers.

Seen from outside: nothing but a model that generalises less well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ddoctor.analysis.data_overlap import by_name, place
from ddoctor.evidence.loading import Loader, Loading
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

SEEDED = {
    "numpy.random": "numpy.random.seed(torch.initial_seed() % 2**32)",
    "random": "random.seed(torch.initial_seed())",
    "torch": "torch.manual_seed(torch.utils.data.get_worker_info().seed)",
}
"""How a worker seeds what torch would have seeded; torch gives each worker another seed."""


def same_state(loading: Loading) -> Iterator[Finding]:
    found: dict[tuple[str, str], list[tuple[Loader, Sequence[int]]]] = defaultdict(list)
    by_place = by_name(loading)
    for loader in (one for loaders in by_place.values() for one in loaders):
        for source, workers in _alike(loader):
            found[loader.name, source].append((loader, workers))
    for (name, source), rows in found.items():
        loader, workers = rows[0]
        # A stream is often put into one order by all workers, of which each then takes its part.
        meant = loader.kind == "iterable"
        because = (
            f"{len(workers)} of the {loader.num_workers} workers of the loader at {name} begin "
            f"with the same state of {source} and draw from it (rank {loader.rank}, workers "
            f"{', '.join(map(str, workers))})"
        )
        if meant:
            because += "; that is right where it only puts the stream in order"
        yield Finding(
            severity=Severity.NOTE if meant else Severity.WARNING,
            confidence=Confidence.POSSIBLE if meant else Confidence.CERTAIN,
            because=because,
            evidence=(
                Observation(
                    name=f"different states of {source}",
                    value=1 + loader.num_workers - len(workers),
                    expected=loader.num_workers,
                    source="a fingerprint in each worker, before its first batch",
                ),
            ),
            where=place({one.rank for one, _ in rows}, by_place[name]),
            fixes=(_fix(loader, source),),
        )


def _alike(loader: Loader) -> Iterator[tuple[str, Sequence[int]]]:
    """The sources that several workers use from one and the same state on."""
    states: dict[tuple[str, str], list[int]] = defaultdict(list)
    for one in loader.randomness:
        if one.used:
            states[one.source, one.first].append(one.worker)
    for (source, _), workers in states.items():
        if len(workers) > 1:
            yield source, workers


def _fix(loader: Loader, source: str) -> Fix:
    attribute = source.removeprefix("dataset.")
    seeding = SEEDED.get(
        source,
        "info = torch.utils.data.get_worker_info()\n"
        f"    info.dataset.{attribute} = numpy.random.default_rng(info.seed)",
    )
    return Fix(
        summary=f"seed {source} in each worker",
        paste=(
            "def seed_worker(worker):\n"
            f"    {seeding}\n"
            "\n"
            f"DataLoader(…, worker_init_fn=seed_worker)  # {loader.name}"
        ),
        language="python",
        caution=""
        if source in SEEDED
        else f"or random.Random(info.seed), or a torch.Generator: of the kind that {source} is now",
    )
