"""A backward pass continues through a model whose gradients nothing uses.

The gradients of one model are zeroed before any optimizer takes them, and no other gradient needs
them. The classic case is a GAN whose discriminator learns from samples that still hang on the
generator. Then each of its backward passes runs through the generator as well, and DDP exchanges
those gradients.

Symptoms: a backward pass that takes much longer than its own model explains; the run is faster with
``.detach()``, and its losses are the same.

The same happens in a part of one model that no optimizer has, and that is not frozen.

To fix it, detach what comes from the other model, or compute it under ``torch.no_grad()``; freeze
what is not trained.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import live_cost
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

INSPECTED = ("ddp", "none")
"""Kinds of wrappers whose gradients are followed one by one."""
EXPLAINS = ("communication-bound-step", "scaling-efficiency-low")


def after_the_last_one_taken(wrapping: Wrapping, steps: Steps) -> Iterator[Finding]:
    for models in wrapping.by_name(lambda one: one.kind in INSPECTED):
        # Two models of a rank may have one class.
        most: dict[int, float] = {}
        for one in models:
            most[one.rank] = max(one.discarded, most.get(one.rank, 0.0))
        wasted = min(most.values())
        share = wasted * min((rank.share("backward") for rank in steps.ranks), default=0.0)
        if share < live_cost.TOLD:
            continue
        name = models[0].name
        yield Finding(
            severity=live_cost.severity(share),
            confidence=Confidence.LIKELY,
            because=(
                f"{wasted:.0%} of the backward passes comes after the last gradient that an "
                f"optimizer takes, and goes through {name}, whose gradients are zeroed then: "
                f"{share:.0%} of the step"
            ),
            evidence=(
                Observation(
                    name="time after the last gradient taken",
                    value=round(100 * wasted, 1),
                    unit="% of backward passes",
                    expected=0,
                    source="gradients of the first steps, one by one",
                ),
            ),
            cost=Cost(value=round(share, 3), unit="share of step"),
            fixes=(
                _detached(name, f"up to {share:.0%} of the step"),
                Fix.python(
                    summary="or freeze what no optimizer trains, before the model is wrapped",
                    paste="part.requires_grad_(False)",
                ),
            ),
        )


def in_the_source(script: Script, wrapping: Wrapping | None) -> Iterator[Finding]:
    if wrapping is not None and any(one.kind in INSPECTED for one in wrapping.wrappers):
        return
    for one in script.discarded_passes[:1]:
        yield Finding(
            severity=Severity.NOTE,
            confidence=Confidence.LIKELY,
            because=f"{shown(one.at)} learns from what {shown(one.made)} made, with its graph: "
            "the backward pass continues through that model, whose gradients are zeroed before "
            "its own step",
            fixes=(_detached("the model that makes the samples"),),
        )


def of_a_teacher(script: Script, wrapping: Wrapping | None) -> Iterator[Finding]:
    """A model in evaluation mode, which keeps no gradients from its parameters."""
    # parameters-not-optimized
    if wrapping is not None and any(one.untrained for one in wrapping.wrappers):
        return
    for one in script.teachers[:1]:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{shown(one.at)} calls a model that no optimizer has, and {shown(one.mode)} "
            "keeps no gradients from its parameters: each backward pass computes them, and "
            "nothing uses them",
            fixes=(
                Fix.python(
                    summary="freeze it, before it is wrapped",
                    paste="teacher.requires_grad_(False)",
                    caution="where it judges what a trained model makes, gradients still flow "
                    "through it, as they must",
                ),
                Fix.python(
                    summary="or call it without gradients, where it gets samples alone",
                    paste="with torch.no_grad():\n    target = teacher(batch)",
                ),
            ),
        )


def of_a_moving_average(script: Script) -> Iterator[Finding]:
    """A model that follows the trained one, as in BYOL, and learns nothing itself."""
    for one in script.moving_targets[:1]:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{shown(one.at)} calls a model with gradients, whose parameters "
            f"{shown(one.averaged)} takes from the trained one: each backward pass computes "
            "them for it as well, and nothing uses them",
            fixes=(
                Fix.python(
                    summary="compute its result without gradients",
                    paste="with torch.no_grad():\n    target = momentum_model(views)",
                ),
            ),
        )


def _detached(name: str, gain: str = "") -> Fix:
    return Fix.python(
        summary=f"detach what comes from {name} where another model learns from it",
        paste="with torch.no_grad():\n"
        f"    made = model(batch)  # {name}\n"
        "loss = criterion(other(made), target)  # or other(made.detach())",
        expected_gain=gain,
    )
