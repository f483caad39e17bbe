"""Gradient accumulation reduces the gradients in every micro-step instead of once per step.

Several backward passes make one optimizer step, but DDP runs an all-reduce in each of them, because
``no_sync()`` is missing. One all-reduce in the last micro-step gives the same gradient, so all
others are wasted.

Symptoms: accumulation does not make the run faster per sample, and a trace shows one round of
all-reduce per micro-step. ``no_sync()`` around backward alone has no effect; it must also include
the forward pass.

To fix it, run forward and backward of all but the last micro-step inside ``model.no_sync()``.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, median

from ddoctor.evidence.steps import RankSteps, Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

EXPLAINS = ("communication-bound-step", "scaling-efficiency-low")

# A slowdown must persist for this many steps.
ENOUGH_STEPS = 10
# A few steps may differ: the last one of an epoch has fewer micro-steps.
NEARLY_ALL = 0.9
# Half of the 10 % from which published detectors report a slowdown: these reductions are wasted,
# and only time that backward does not hide is counted.
WARNING_SHARE = 0.05


def while_accumulating(
    steps: Steps, wrapping: Wrapping, run: TrainingRun | None
) -> Iterator[Finding]:
    models = wrapping.wrappers
    ranks = {one.rank for one in models}
    # Several models or optimizers that step alternately each need the gradients of their passes.
    alternates = len(models) > len(ranks) or (run is not None and len(run.optimizers) > 1)
    if len(ranks) < 2 or alternates or any(one.kind != "ddp" for one in models):
        return
    if steps.count >= ENOUGH_STEPS and all(map(_accumulates, steps.ranks)):
        yield _finding(steps, run)


def _accumulates(rank: RankSteps) -> bool:
    """Whether nearly all steps accumulate several passes, each with a reduction."""
    if any(number > 1 for number in rank.optimizer_steps):
        return False
    rows = list(zip(rank.forwards, rank.backwards, rank.synced_backwards, strict=False))
    needless = [row for row in rows if row[1] > 1 and row[0] == row[1] == row[2]]
    return len(rows) >= ENOUGH_STEPS and len(needless) >= NEARLY_ALL * len(rows)


def _finding(steps: Steps, run: TrainingRun | None) -> Finding:
    passes = round(median(one for rank in steps.ranks for one in rank.backwards))
    transfer = fmean(steps.share("transfer", rank) for rank in steps.ranks)
    waiting = fmean(steps.share("waiting", rank) for rank in steps.ranks)
    saved = transfer * (passes - 1) / passes
    return Finding(
        severity=Severity.WARNING if saved >= WARNING_SHARE else Severity.NOTE,
        confidence=Confidence.CERTAIN,
        because=(
            f"DDP reduces the gradients in all {passes} backward passes of a step instead of once: "
            f"the transfer takes {transfer:.1%} of the step, of which {saved:.1%} are wasted"
        ),
        evidence=(
            Observation(name="backward passes per step", value=passes),
            Observation(
                name="backward passes with a reduction",
                value=passes,
                expected=1,
                source="DDP's no_sync",
            ),
            Observation(
                name="transfer that backward does not hide",
                value=round(100 * transfer, 1),
                unit="% of step",
            ),
            Observation(
                name="waiting for other ranks", value=round(100 * waiting, 1), unit="% of step"
            ),
        ),
        cost=Cost(value=round(saved, 4), unit="share of step"),
        fixes=tuple(_fixes(passes, saved, run)),
    )


def _fixes(passes: int, saved: float, run: TrainingRun | None) -> Iterator[Fix]:
    framework = run.framework if run is not None else ""
    gain = f"at least {saved:.1%} of the step, and fewer waits for other ranks"
    if "accelerate" in framework:
        yield Fix(
            summary="accumulate with accelerate",
            paste=(
                f"accelerator = Accelerator(gradient_accumulation_steps={passes})\n"
                "for batch in loader:\n"
                "    with accelerator.accumulate(model):\n"
                "        loss = compute_loss(model(batch))\n"
                "        accelerator.backward(loss)\n"
                "        optimizer.step()\n"
                "        optimizer.zero_grad()"
            ),
            language="python",
            caution=f"accelerate divides the loss by {passes}: do not divide it again",
            expected_gain=gain,
        )
    yield Fix(
        summary="run forward and backward inside no_sync(), except in the last micro-step",
        paste=(
            "from contextlib import nullcontext\n\n"
            "for number, batch in enumerate(loader, 1):\n"
            f"    last = number % {passes} == 0\n"
            "    with nullcontext() if last else model.no_sync():\n"
            f"        loss = compute_loss(model(batch)) / {passes}\n"
            "        loss.backward()\n"
            "    if last:\n"
            "        optimizer.step()\n"
            "        optimizer.zero_grad()"
        ),
        language="python",
        expected_gain=gain,
    )
