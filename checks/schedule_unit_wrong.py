"""The schedule of the learning rate counts epochs and moves in each step, or the other way round.

A schedule knows only how often its ``step()`` is called. Made for a number of epochs and moved in
each step, it is over after some steps: a cosine then swings up and down until the end. Made for all
steps and moved once an epoch, it never leaves its beginning, often the warm-up.

Symptoms: no error; the learning rate in the logs falls within the first epoch, or hardly changes.

To fix it, count what moves it: ``epochs * len(loader)`` for one step per batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Severity


def in_the_source(script: Script) -> Iterator[Finding]:
    for one in script.other_units[:1]:
        moves = "each step of the training" if one.counts == "epochs" else "each epoch"
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{shown(one.made)} counts {one.counts}, and {shown(one.at)} moves it once in "
            f"{moves}",
            fixes=(
                Fix.python(
                    summary="count steps, and move it after each step of the optimizer",
                    paste="schedule = CosineAnnealingLR(optimizer, T_max=epochs * len(loader))\n"
                    "...\n"
                    "optimizer.step()\n"
                    "schedule.step()",
                    caution="with gradient accumulation, len(loader) // accumulation steps",
                ),
                Fix.python(
                    summary="or count epochs, and move it after each epoch",
                    paste="schedule = CosineAnnealingLR(optimizer, T_max=epochs)\n"
                    "for epoch in range(epochs):\n"
                    "    ...\n"
                    "    schedule.step()",
                ),
            ),
        )
