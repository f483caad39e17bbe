"""A DataLoader gets options that exclude each other, so it raises an exception when it is created.

A sampler decides the order of the samples, so ``shuffle=True`` contradicts it. A batch sampler also
decides the batch size. A stream (IterableDataset) has no order that a sampler or ``shuffle`` could
change. ``persistent_workers`` and ``prefetch_factor`` need workers.

Symptoms: "ValueError: sampler option is mutually exclusive with shuffle", "persistent_workers
option needs num_workers > 0" or a similar message, on all ranks.

To fix it, remove the option that the other one replaces.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import LOADER, shown, with_keywords, worker_count
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.models import Confidence, Finding, Fix, Severity

EXPLAINS = ("script-error",)


def in_the_source(script: Script) -> Iterator[Finding]:
    streams = {one.name for one in script.datasets if one.iterable}
    for loader in script.of(LOADER):
        for given, why in _conflicts(loader, streams):
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.CERTAIN,
                because=f"{shown(loader.at)} raises ValueError: {why}",
                fixes=(
                    Fix.python(
                        summary=f"remove {given}", paste=with_keywords(loader, **{given: None})
                    ),
                ),
            )
            break


def _conflicts(loader: SourceCall, streams: set[str]) -> Iterator[tuple[str, str]]:
    """The option to remove, and why (torch/utils/data/dataloader.py)."""
    samplers = [one for one in ("sampler", "batch_sampler") if _is_sampler(loader, one)]
    made = loader.origin("dataset", 0)
    stream = len(made) == 1 and made[0] in streams
    if stream and samplers:
        yield samplers[0], f"{made[0].rpartition('.')[2]} is a stream, which takes no {samplers[0]}"
    if loader.keywords.get("shuffle") == "True" and (samplers or stream):
        decides = f"the {samplers[0]} decides the order" if samplers else "a stream has its order"
        yield "shuffle", f"{decides}, so shuffle must be False"
    if "batch_sampler" in samplers and loader.keywords.get("batch_size", "1") not in ("1", "None"):
        yield "batch_size", "the batch_sampler decides the size of a batch"
    if worker_count(loader) == 0:
        if loader.keywords.get("persistent_workers") == "True":
            yield "persistent_workers", "persistent_workers needs num_workers > 0"
        if loader.keywords.get("prefetch_factor", "").isdigit():
            yield "prefetch_factor", "prefetch_factor needs num_workers > 0"


def _is_sampler(loader: SourceCall, option: str) -> bool:
    """Whether all that may make the value of an option is a sampler, and never None."""
    made = loader.origin(option)
    return bool(made) and all(one.endswith("Sampler") for one in made)
