"""The ranks hold different versions of one dataset, of which a sampler gives each rank a part.

A ``DistributedSampler`` shares out numbers: item 7 is to be the same sample, with the same label,
on all ranks. Folders are listed in another order on each host, a ``set`` of texts has another order
in each process, and a shuffle needs the same seed. Then some samples are used twice and others
never. Labels that are numbered in such an order contradict each other.

Symptoms: no error; the loss levels off higher than on one GPU, or its accuracy is near chance.

To fix it, sort what is listed, and seed what is shuffled alike on all ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.analysis.data_overlap import by_name
from ddoctor.analysis.script_source import WRAPPERS, shown, trains
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.loading import Loader, Loading
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Severity

HASHES = "env.PYTHONHASHSEED"
"""A variable that makes the order of texts in a set the same in all processes."""

# Other numbers may be drawn for each item, say for augmentation.
IDENTIFIES = re.compile(
    r"(?:^|[._])(?:x|y|ids?|ind\w*|idx)$|label|target|class|file|path|name|image|sample|row|key|text",
    re.IGNORECASE,
)


def found(loading: Loading) -> Iterator[Finding]:
    for name, loaders in by_name(loading).items():
        shared = len(loaders) > 1 and all(one.replicas == len(loaders) for one in loaders)
        if not shared or len({one.items for one in loaders}) > 1:
            continue
        names = set.intersection(*(set(one.fields) for one in loaders))
        apart = sorted(one for one in names if _kinds(loaders, one, 0) > 1)
        turned = [one for one in apart if _kinds(loaders, one, 1) == 1]
        # Data that each rank draws at random has nothing in common.
        if not apart or not (turned or len(apart) < len(names)):
            continue
        what = (
            f"has the same entries in another order on each rank: {', '.join(turned)}"
            if turned
            else f"differs in {', '.join(apart)} between ranks, and is the same in other fields"
        )
        sure = bool(turned) or any(map(IDENTIFIES.search, apart))
        yield Finding(
            severity=Severity.WARNING if sure else Severity.NOTE,
            confidence=Confidence.LIKELY if sure else Confidence.POSSIBLE,
            because=(
                f"the {loaders[0].dataset} of the DataLoader at {name} {what}, although its "
                "sampler shares out one dataset by the numbers of its items"
            ),
            fixes=(
                Fix.python(
                    summary="make it alike on all ranks: sort, and use one seed",
                    paste=(
                        "files = sorted(os.listdir(folder))\n"
                        "classes = sorted({row['label'] for row in rows})  # not list(set(…))\n"
                        "random.Random(0).shuffle(files)  # the same seed on each rank"
                    ),
                    caution="the order of a set of texts changes from process to process "
                    "(PYTHONHASHSEED)",
                ),
            ),
        )


def in_the_source(script: Script, launch: Launch | None) -> Iterator[Finding]:
    """Texts are numbered in the order of a set, which each rank has in another way."""
    several = launch is not None and (launch.ranks or 1) > 1
    fixed = launch is not None and launch.get(HASHES) is not None
    if script.unseen or fixed or not (script.of(*WRAPPERS) or (several and trains(script))):
        return
    for one in script.numbered_texts[:1]:
        yield Finding(
            title="Each rank numbers words or names in another order",
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(one)} numbers texts in the order of a set, which differs from process to "
                "process: the same text has another number on each rank"
            ),
            fixes=(
                Fix.python(
                    summary="sort them before they get their numbers",
                    paste="numbers = {text: n for n, text in enumerate(sorted(set(texts)))}",
                    caution="numbers in saved checkpoints and files change, too",
                ),
            ),
        )


def _kinds(loaders: Sequence[Loader], field: str, way: int) -> int:
    return len({one.fields[field][way] for one in loaders})
