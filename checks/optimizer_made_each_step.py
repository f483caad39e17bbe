"""Each step makes a new optimizer, which has lost what the one before knew of the gradients.

Adam scales each weight's step by means of past gradients, and momentum is such a mean. They are
kept in the optimizer. A new one begins with none: Adam then moves each weight by the full learning
rate, however small its gradient is.

Symptoms: no error; the loss falls at first, then stays high or swings.

To fix it, make the optimizer once, before the loop.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import endings
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.evidence.training import RankUse
from ddoctor.models import Confidence, Finding, Fix, Severity


def found(use: RankUse) -> Iterator[Finding]:
    if not use.flags or not all(one.remade for one in use.flags):
        return
    line = next((one.remade_at for one in use.flags if one.remade_at is not None), None)
    yield _finding(
        "each step was the first of a new optimizer for the same parameters"
        f"{endings.at(line)}{endings.quoted(line)}"
    )


def in_the_source(script: Script, use: RankUse | None) -> Iterator[Finding]:
    if use is not None and use.flags:
        return
    for line in script.remade_optimizers[:1]:
        yield _finding(f"{shown(line)} makes a new optimizer in each step of the training loop")


def _finding(because: str) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=f"{because}; what it keeps of past gradients is lost",
        fixes=(
            Fix.python(
                summary="make the optimizer once, before the loop",
                paste=(
                    "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)\n"
                    "for batch in loader:\n"
                    "    ...\n"
                    "    optimizer.step()"
                ),
            ),
            Fix.python(
                summary="to change the learning rate, change it in the optimizer",
                paste="for group in optimizer.param_groups:\n    group['lr'] = lr",
            ),
        ),
    )
