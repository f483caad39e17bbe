"""Layers compute the same input twice in each step, forwards and backwards.

A loss or a metric often needs something from inside of the model, and calls the encoder for it once
more, although the first pass has computed it. Both passes keep their activations, and both go
backwards. Some methods want two passes that dropout makes differ (SimCSE, R-Drop), and need them.

Symptoms: the step takes longer and more memory than the model explains.

A model may also compute in each forward pass what never changes, say the eigenvectors of a graph
that it keeps as a buffer.

A parametrization, such as ``weight_norm`` or ``orthogonal``, computes its weight at each use: in a
loop over time, once for each time step.

To fix it, return what is needed from the first pass, say the hidden states, and use it twice.
Compute what never changes in the constructor. For a parametrization, use
``torch.nn.utils.parametrize.cached()``.
"""

# Above 150 lines: layers, weights and buffers, in a recorded run, a live one and the source.

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ddoctor.analysis import endings, live_cost
from ddoctor.analysis.live_ranks import shares
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.script_source import shown
from ddoctor.analysis.stack_activities import FORWARD, PARAMETRIZATION
from ddoctor.analysis.stragglers import enough
from ddoctor.evidence.live import Activity, LiveLook
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceFixed
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.evidence.steps import Lines, Steps
from ddoctor.evidence.training import RankUse, Repeat
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

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


def in_the_source(script: Script, lines: Lines | None, look: LiveLook | None) -> Iterator[Finding]:
    """What a run has measured tells more."""
    for one in script.fixed_work[:1] if lines is None and look is None else ():
        yield _of_a_buffer(one, None, ())


def of_buffers(script: Script, steps: Steps, lines: Lines) -> Iterator[Finding]:
    """The share of the samples at such a line, of the rank with the least."""
    spent = {one: _sampled(one.at, lines) for one in script.fixed_work}
    if enough(steps) and spent and max(spent.values()) >= live_cost.TOLD:
        most = max(spent, key=lambda one: spent[one])
        yield _of_a_buffer(most, spent[most], ())


def _sampled(at: SourceLine, lines: Lines) -> float:
    return min(
        (
            sum(
                line.samples
                for line in rank.lines
                if line.phase == "forward" and at.holds(line.frame)
            )
            / max(1, rank.samples)
            for rank in lines.ranks
        ),
        default=0.0,
    )


def of_buffers_in_a_live_run(live: LiveState, script: Script) -> Iterator[Finding]:
    for one in script.fixed_work if live.moves else ():
        there = partial(_computes, one.at)
        spent = {rank: rank.share(there) for rank in live.ranks}
        if (share := min(spent.values(), default=0.0)) >= live_cost.TOLD:
            yield _of_a_buffer(one, share, shares("there", spent))
            return


def _computes(at: SourceLine, row: Activity) -> bool:
    inside = row.calls[row.entered :]
    return row.name == FORWARD and any(map(at.holds, inside))


def _of_a_buffer(
    one: SourceFixed, share: float | None, evidence: tuple[Observation, ...]
) -> Finding:
    name = one.buffer.removeprefix("self.")
    costs = f", for {share:.0%} of the time" if share is not None else ""
    return Finding(
        severity=Severity.NOTE if share is None else live_cost.severity(share),
        confidence=Confidence.LIKELY,
        title="The forward pass computes in each step what never changes",
        because=(
            f"{shown(one.at)} computes the same in each step{costs}: the buffer {name} never "
            "changes"
        ),
        evidence=evidence,
        cost=Cost(value=round(share, 3), unit="share of step") if share is not None else None,
        fixes=(
            Fix.python(
                summary="compute it once, in the constructor, and keep it as a buffer",
                paste=(
                    f"# in __init__, after {one.buffer} is registered\n"
                    'self.register_buffer("result", compute(' + one.buffer + "), persistent=False)"
                ),
                caution="load another value of the buffer before this, or compute it again then",
                expected_gain=f"up to {share:.0%} of the step" if share is not None else None,
            ),
        ),
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
