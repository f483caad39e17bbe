"""Gradients are never zeroed, so each step repeats all gradients of the steps before.

``backward()`` adds to the gradients that are there. Without ``zero_grad()`` the optimizer gets the
sum of all batches since the start. That sum grows, and old gradients belong to weights that are no
longer there. Training drifts, and often diverges after a good start.

Symptoms: no error; the norm of the gradients rises with each step; the loss rises or swings.

To fix it, call ``optimizer.zero_grad()`` after each ``optimizer.step()``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import endings
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import Lines
from ddoctor.evidence.training import RankUse
from ddoctor.models import Confidence, Finding, Fix, Severity

OPTIMIZER = "optimizer"


def found(use: RankUse, lines: Lines | None) -> Iterator[Finding]:
    if not use.flags or not all(one.never_zeroed for one in use.flags):
        return
    yield _finding(
        Severity.ERROR,
        "the gradient that each of the first steps left was still there, unchanged, when the "
        f"next backward pass added its own{_steps_at(lines)}",
    )


def in_the_source(script: Script, use: RankUse | None) -> Iterator[Finding]:
    line = script.never_zeroed
    if line is not None and (use is None or not use.flags):
        yield _finding(
            Severity.WARNING, f"no line of the script zeroes the gradients that {shown(line)} takes"
        )


def _finding(severity: Severity, because: str) -> Finding:
    return Finding(
        severity=severity,
        confidence=Confidence.LIKELY,
        because=because,
        fixes=(
            Fix.python(
                summary="zero the gradients after each step of the optimizer",
                paste="optimizer.step()\noptimizer.zero_grad()",
            ),
        ),
    )


def _steps_at(lines: Lines | None) -> str:
    """The line of the optimizer's step, to follow a sentence; empty: not known."""
    for rank in lines.ranks if lines is not None else ():
        for row in (one for one in rank.lines if one.phase == OPTIMIZER):
            return f"; the step is at {endings.place(row.frame)}{endings.quoted(row.frame)}"
    return ""
