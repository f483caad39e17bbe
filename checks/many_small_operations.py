"""A step runs thousands of small operations one after the other, and they set its time.

An operation of torch takes some microseconds however few numbers it works on, forward and again
backward. A loop over samples, pairs or rows inside a model or a loss makes thousands of them, where
one operation on the whole batch would do. Some loops are needed, as those over time where each step
reads the last one's result. So the finding is a note.

Symptoms: the step takes as long with small layers as with large ones; a GPU is hardly busy.

To fix it, compute all of them at once, by another dimension of the tensors; or compile the loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ddoctor.analysis import endings, live_cost
from ddoctor.analysis.stragglers import enough
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.steps import Lines, Steps
from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

EXPLAINS = ("scaling-efficiency-low",)

# An operation and its gradient, on a CPU: loops over pairs and samples took 17 and 23 µs for each
# on a busy machine with two cores.
SECONDS = 10e-6
# Layers of published models have 5 to 15 operations for each of their parameters.
USUAL = 50
FEW = 2
MADE_IN = ("forward", "rest")


def found(steps: Steps, lines: Lines, use: RankUse) -> Iterator[Finding]:
    if not enough(steps) or not use.flags:
        return
    one = min(use.flags, key=lambda one: one.operations)
    share = SECONDS * one.operations / steps.step
    if share < live_cost.SURE or one.operations < USUAL * one.graph_parameters or _launches(one):
        return
    met: Counter[Frame] = Counter()
    for rank in lines.ranks:
        for row in rank.lines:
            if row.phase in MADE_IN:
                met[row.frame] += row.samples
    made = [f"{endings.place(line)}{endings.quoted(line)}" for line, _ in met.most_common(FEW)]
    yield Finding(
        severity=Severity.NOTE,
        confidence=Confidence.POSSIBLE,
        because=(
            f"a step computes the gradients of {one.graph_parameters} parameters through "
            f"{one.operations:,} operations; at 10 µs each they are {share:.0%} of the step"
            + (f", made mostly at {', '.join(made)}" if made else "")
        ),
        evidence=(
            Observation(
                name="operations of a step",
                value=one.operations,
                expected=USUAL * one.graph_parameters,
                source="the graph of a step, the rank with the least; 5 to 15 a parameter in "
                "published models",
            ),
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(
            Fix.python(
                summary="compute at once what a loop computes for one sample, pair or row after "
                "another",
                paste="distances = torch.cdist(points, points)  # all pairs\n"
                "outputs = layer(samples)  # all samples",
                caution="a loop in which each turn reads the last one's result is needed; "
                "torch.compile makes it faster",
            ),
        ),
    )


def _launches(one: RankFlags) -> bool:
    """Whether a GPU runs them: then it waits for launches, which is measured."""
    return bool(one.device_name)
