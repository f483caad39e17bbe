"""Evaluation takes a large part of the training's time, as it comes round after a few steps.

An evaluation of the whole validation data is worth its time once in some hundred steps. Each few
steps, all ranks spend more time on it than on learning, and the curve that it draws is no smoother.
Some methods do compute without gradients in each step, and need it: only what is named an
evaluation is reported there. The finding is a note.

Symptoms: the mean step is much longer than the median one; all GPUs are busy.

To fix it, evaluate less often, or on a part of the validation data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median

from ddoctor.analysis import endings, live_cost
from ddoctor.analysis.loop_work import EVALUATION
from ddoctor.analysis.stragglers import enough
from ddoctor.evidence.frames import Frame, shared
from ddoctor.evidence.steps import Lines, RankSteps, Steps
from ddoctor.models import Confidence, Cost, Finding, Fix, Severity

FEWEST = 2
"""Evaluations that show how often they come."""
GENERATES = ".generate("
EVALUATES = re.compile(r"eval|valid|test|generate", re.IGNORECASE)
"""A word for what a step may do without. Others, such as targets and actions, it needs."""


def found(steps: Steps, lines: Lines | None) -> Iterator[Finding]:
    if not enough(steps):
        return
    rank = min(steps.ranks, key=lambda one: one.share(EVALUATION))
    share, visits = rank.share(EVALUATION), _visits(rank)
    if share < live_cost.SURE or len(visits) < FEWEST:
        return
    every = len(rank.seconds) / len(visits)
    each = every < 1.5
    if each and not any(map(EVALUATES.search, _words(lines, rank.place.rank))):
        return
    how_often = "in each step" if each else f"about every {every:.0f} steps"
    line = _begun(lines, rank.place.rank)
    yield Finding(
        severity=Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"all ranks evaluate {how_often}, for {1000 * median(visits):.3g} ms: {share:.0%} of "
            f"the time{endings.at(line)}{endings.quoted(line)}"
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(
            *_caching(lines, rank.place.rank),
            Fix.python(
                summary="evaluate less often, or on a part of the data",
                paste="if step % 1000 == 0:\n"
                "    evaluate(model, validation)  # TrainingArguments(eval_steps=1000)",
                expected_gain=f"up to {share:.0%} of the time",
            ),
        ),
    )


def _caching(lines: Lines | None, rank: int) -> Iterator[Fix]:
    """A model whose configuration switches the cache off, say for checkpointing, keeps none."""
    rows = lines.of(rank, EVALUATION) if lines is not None else ()
    if any(GENERATES in frame.text for row in rows for frame in (*row.calls, row.frame)):
        yield Fix.python(
            summary="generate with the cache: without it, each token computes all tokens before it",
            paste="model.generate(**batch, use_cache=True)",
            caution="check model.config.use_cache: training with checkpointing sets it to False",
        )


def _words(lines: Lines | None, rank: int) -> Iterator[str]:
    for row in lines.of(rank, EVALUATION) if lines is not None else ():
        for frame in (*row.calls, row.frame):
            yield f"{frame.function} {frame.text}"


def _visits(rank: RankSteps) -> list[float]:
    """Seconds of each step with an evaluation."""
    return [seconds for seconds in rank.spent(EVALUATION) if seconds]


def _begun(lines: Lines | None, rank: int) -> Frame | None:
    """The line that all of its samples have in common, the innermost one; None: not known."""
    rows = lines.of(rank, EVALUATION) if lines is not None else ()
    common = shared(row.calls for row in rows)
    return common[-1] if common else None
