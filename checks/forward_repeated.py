"""Layers compute the same input twice in each step, forwards and backwards.

A loss or a metric often needs something from inside of the model, and calls the encoder for it once
more, although the first pass has computed it. Both passes keep their activations, and both go
backwards. Some methods want two passes that dropout makes differ (SimCSE, R-Drop), and need them.

Symptoms: the step takes longer and more memory than the model explains.

A parametrization, such as ``weight_norm`` or ``orthogonal``, computes its weight at each use: in a
loop over time, once for each time step.

To fix it, return what is needed from the first pass, say the hidden states, and use it twice. For a
parametrization, use ``torch.nn.utils.parametrize.cached()``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import endings, live_cost
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.stack_activities import PARAMETRIZATION
from ddoctor.analysis.stragglers import enough
from ddoctor.evidence.live import Activity
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankUse, Repeat
from ddoctor.models import Confidence, Cost, Finding, Fix, Severity

EXPLAINS = ("scaling-efficiency-low", "compute-bound")

# A backward pass takes as long as the forward pass at least.
WITH_BACKWARD = 2


def found(steps: Steps, use: RankUse) -> Iterator[Finding]:
    repeats = [one.repeat for one in use.flags]
    if not enough(steps) or not all(repeats):
        return
    one = min(filter(None, repeats), key=lambda repeat: repeat.seconds, default=None)
    share = min(1.0, WITH_BACKWARD * one.seconds / steps.step) if one is not None else 0.0
    if one is None or share < live_cost.TOLD:
        return
    if one.weights:
        yield _of_weights(one, share)
        return
    wanted = "; if dropout shall make them differ, that is right" if one.random else ""
    yield Finding(
        severity=Severity.NOTE if one.random else live_cost.severity(share),
        confidence=Confidence.POSSIBLE if one.random else Confidence.LIKELY,
        because=(
            f"the same layers compute the same tensor a second time in each step"
            f"{endings.at(one.line)}{endings.quoted(one.line)}, {1000 * one.seconds:.3g} ms "
            f"forwards and at least as long backwards: {share:.0%} of the step{wanted}"
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(
            Fix.python(
                summary="use the first result twice",
                paste=(
                    "outputs = model(**batch, output_hidden_states=True)\n"
                    "pooled = outputs.hidden_states[-1].mean(1)  # not model.encoder(...) again"
                ),
                expected_gain=f"up to {share:.0%} of the step",
            ),
        ),
    )


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    """Of parametrizations alone, whose functions are torch's."""
    if not live.moves:
        return
    share = min((rank.share(_in_a_loop) for rank in live.ranks), default=0.0)
    if share < live_cost.TOLD:
        return
    rows = [row for rank in live.ranks for row in rank.seen.activities if _in_a_loop(row)]
    line = max(rows, key=lambda row: row.samples).calls[-1]
    # The backward pass through it has no frame of Python.
    yield _of_weights_that(
        f"all ranks compute a weight by a parametrization for {share:.0%} of the time in the "
        f"forward pass, in a loop, at {endings.place(line)}{endings.quoted(line)}, and go "
        "backwards through each",
        min(1.0, WITH_BACKWARD * share),
    )


def _in_a_loop(row: Activity) -> bool:
    """Whether it computes a parametrized weight in a loop of the model's."""
    inside = {(one.file, one.function) for one in row.calls[row.entered :]}
    loops = any(block.loop and (block.file, block.function) in inside for block in row.within)
    return row.makes == PARAMETRIZATION and loops


def _of_weights(one: Repeat, share: float) -> Finding:
    return _of_weights_that(
        f"a parametrization computes the same weight {one.weights + 1} times in each step"
        f"{endings.at(one.line)}{endings.quoted(one.line)}: {1000 * one.seconds:.3g} ms "
        f"forwards and at least as long backwards, {share:.0%} of the step",
        share,
    )


def _of_weights_that(because: str, share: float) -> Finding:
    return Finding(
        severity=live_cost.severity(share),
        confidence=Confidence.LIKELY,
        title="A weight that a parametrization computes is computed again at each use in a step",
        because=because,
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(
            Fix.python(
                summary="compute it once in each forward pass",
                paste=(
                    "from torch.nn.utils import parametrize\n\n"
                    "with parametrize.cached():  # around the forward pass\n"
                    "    outputs = model(inputs)"
                ),
                caution="not across an optimizer's step: the weight changes there",
                expected_gain=f"up to {share:.0%} of the step",
            ),
        ),
    )
