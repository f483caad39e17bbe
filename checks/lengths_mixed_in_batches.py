"""Batches mix short and long samples, so most of what the model computes is padding.

A batch of random samples is padded to its longest one. Where lengths differ much, one long sample
makes all others as long. A transformer computes the padding like tokens.

Symptoms: few real tokens a second, though the GPUs are busy; nothing in the step waits for long.

To fix it, put samples of like lengths into one batch, or several samples into one row (packing).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from statistics import fmean, pstdev

from ddoctor.analysis import live_cost
from ddoctor.analysis.framework_words import FrameworkWords
from ddoctor.analysis.like_lengths import grouped
from ddoctor.evidence.loading import Loader, Loading
from ddoctor.evidence.steps import RankSteps, Steps
from ddoctor.models import Confidence, Cost, Finding, Observation, Severity

EXPLAINS = ("uneven-work-per-rank", "scaling-efficiency-low")

ENOUGH_BATCHES = 4
PASSES = ("forward", "backward")
# Texts of usual data leave a third of a random batch empty. Double the computing is a fault.
LOUD = 0.4
# Batches whose widths differ by less show nothing of what the width costs.
DIFFER = 0.05
# Doubled width, passes longer by a fifth: then something else takes the time.
LEAST_SLOPE = 0.3


def in_the_batches(loading: Loading, steps: Steps, words: FrameworkWords) -> Iterator[Finding]:
    each = [one for one in loading.loaders if len(one.padded) >= ENOUGH_BATCHES]
    if not each or not steps.ranks:
        return
    one = min(each, key=_padded)
    # What no sample of a batch has is told as padding beyond the longest.
    unused = _padded(one) - fmean(one.padding)
    slopes = [found for rank in steps.ranks if (found := _slope(rank)) is not None]
    share = unused * min(rank.share(*PASSES) for rank in steps.ranks)
    if share < live_cost.SURE or (slopes and fmean(slopes) < LEAST_SLOPE):
        return
    # Without a difference it is not known whether the padded tensors are what takes the time.
    loud = share >= LOUD and bool(slopes)
    yield Finding(
        severity=Severity.WARNING if loud else Severity.NOTE,
        confidence=Confidence.LIKELY if slopes else Confidence.POSSIBLE,
        because=(
            f"{unused:.0%} of the tokens in {len(one.padded)} batches of {one.name} are padding "
            "up to the longest sample of the batch, and the model computes them as well: "
            f"{share:.0%} of the step" + ("; wider batches take longer" if slopes else "")
        ),
        evidence=(
            Observation(
                name=f"padding up to the longest sample, {one.collate or one.dataset}",
                value=round(100 * unused, 1),
                unit="% of a batch",
                source=f"integer tensors of {len(one.padded)} batches",
            ),
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(grouped(words, f"up to {share:.0%} of the step"),),
    )


def _padded(loader: Loader) -> float:
    return fmean(loader.padded)


def _slope(rank: RankSteps) -> float | None:
    """By how much the time of the passes grows with the numbers of the inputs, as an exponent.

    None: they hardly differ.
    """
    points = [
        (log(amount), log(seconds))
        for amount, seconds in zip(rank.elements, rank.spent(*PASSES), strict=False)
        if amount > 0 and seconds > 0
    ]
    if len(points) < 2:
        return None
    amounts, times = zip(*points, strict=True)
    spread = pstdev(amounts)
    if spread < DIFFER:
        return None
    middle, usual = fmean(amounts), fmean(times)
    together = fmean([(a - middle) * (b - usual) for a, b in points])
    return float(together / spread**2)
