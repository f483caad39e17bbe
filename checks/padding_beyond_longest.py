"""Each batch is padded beyond its longest sample, and the model computes the rest for nothing.

Samples of different lengths become one tensor by padding. Padded to a fixed length, as by
``padding="max_length"``, a batch has columns in which no sample has anything. A transformer
computes them like all others, and attention pays for their square.

Symptoms: short and long batches take the same time; a GPU is busy, and few tokens a second count.

To fix it, pad each batch to its own longest sample, in the collate function.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

from ddoctor.analysis import live_cost
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.loading import Loader, Loading
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import Steps
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

EXPLAINS = ("scaling-efficiency-low",)

ENOUGH_BATCHES = 4
PASSES = ("forward", "backward")
_FIX = Fix.python(
    summary="pad each batch to its own longest sample, when it is collated",
    paste=(
        "ids = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=pad)\n"
        "# transformers: no padding in the dataset, and\n"
        "collate_fn = DataCollatorWithPadding(tokenizer, padding=True)"
    ),
    caution="compiled models and CUDA graphs want few shapes: pad to a multiple of 64",
)


def in_the_batches(loading: Loading, steps: Steps) -> Iterator[Finding]:
    each = [one for one in loading.loaders if _always(one)]
    if not each:
        return
    one = min(each, key=lambda one: fmean(one.padding))
    unused = fmean(one.padding)
    # A transformer's time grows at least in proportion to the length.
    share = unused * min((rank.share(*PASSES) for rank in steps.ranks), default=0.0)
    if share < live_cost.TOLD:
        return
    yield Finding(
        severity=live_cost.severity(share),
        confidence=Confidence.LIKELY,
        because=(
            f"in each of {len(one.padding)} batches of {one.name} that were looked at, "
            f"{min(one.padding):.0%} of the columns and more ({unused:.0%} in the mean) are "
            "padding in all samples: the model computes them as well"
        ),
        evidence=(
            Observation(
                name=f"columns without any sample, {one.collate or one.dataset}",
                value=round(100 * unused, 1),
                unit="% of a batch",
                expected=0,
                source=f"integer tensors of {len(one.padding)} batches",
            ),
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(replace(_FIX, expected_gain=f"at least {share:.0%} of the step"),),
    )


def in_the_source(script: Script, loading: Loading | None) -> Iterator[Finding]:
    measured = loading is not None and any(one.padding for one in loading.loaders)
    # Compiled models and CUDA graphs want few shapes.
    if measured or not script.fixed_padding or script.of("torch.compile"):
        return
    yield Finding(
        severity=Severity.NOTE,
        confidence=Confidence.POSSIBLE,
        because=(
            f"{shown(script.fixed_padding[0])} pads to a fixed length, however short the longest "
            "sample of a batch is, and the model computes the padding as well: `ddoctor run` "
            "measures how much it is"
        ),
        fixes=(_FIX,),
    )


def _always(loader: Loader) -> bool:
    return len(loader.padding) >= ENOUGH_BATCHES and min(loader.padding) >= live_cost.TOLD
