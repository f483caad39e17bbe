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
from ddoctor.analysis.stragglers import enough
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


def _of_weights(one: Repeat, share: float) -> Finding:
    return Finding(
        severity=live_cost.severity(share),
        confidence=Confidence.LIKELY,
        title="A weight that a parametrization computes is computed again at each use in a step",
        because=(
            f"a parametrization computes the same weight {one.weights + 1} times in each step"
            f"{endings.at(one.line)}{endings.quoted(one.line)}: {1000 * one.seconds:.3g} ms "
            f"forwards and at least as long backwards, {share:.0%} of the step"
        ),
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
