"""Gradient accumulation reduces the gradients in every micro-step instead of once per step.

Several backward passes make one optimizer step, but DDP runs an all-reduce in each of them, because
``no_sync()`` is missing. One all-reduce in the last micro-step gives the same gradient, so all
others are wasted.

Symptoms: accumulation does not make the run faster per sample, and a trace shows one round of
all-reduce per micro-step. ``no_sync()`` around backward alone has no effect; it must also include
the forward pass.

To fix it, run forward and backward of all but the last micro-step inside ``model.no_sync()``.
"""

# Above 150 lines: a run measures what the source only shows, and frameworks accumulate in their
# own ways.

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median

from ddoctor.analysis.ddp_options import accumulate
from ddoctor.analysis.framework_words import FrameworkWords
from ddoctor.analysis.script_source import is_plain, shown
from ddoctor.analysis.stragglers import ENOUGH_STEPS
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.evidence.steps import RankSteps, Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

EXPLAINS = ("communication-bound-step", "scaling-efficiency-low")

# A few steps may differ: the last one of an epoch has fewer micro-steps.
NEARLY_ALL = 0.9
# Half of the 10 % from which published detectors report a slowdown: these reductions are wasted,
# and only time that backward does not hide is counted.
WARNING_SHARE = 0.05
# Reductions that computation hides still take its memory bandwidth, and its CPUs or SMs: on two
# CPUs, seven of eight made a step 1.6 times as long, of which 4 % were visible as a transfer.
HIDDEN_SHARE = 0.2
STEPS = re.compile(r"opt|scaler", re.IGNORECASE)
"""Objects whose ``step`` changes the parameters."""
ATOM = re.compile(r"[\w.]+(?:\([\w.]*\))?")
COUNTS = re.compile(r"for (?P<name>\w+) in range\((?P<count>[^,]+)\):")
NUMBERS = re.compile(r"for \(?(?P<name>\w+), .+ in enumerate\((?P<parts>[^,]+)\):")
TAKES = re.compile(r"for (?P<name>\w+) in (?P<parts>.+):")
"""Loops over micro-steps: by their number, with their number, and over the parts of a batch."""
COUNTED = re.compile(r"%|(?:[=!]=|[<>]=?)[^=<>]*(?:accum|micro|every)", re.IGNORECASE)
"""A condition that holds in one of several micro-steps."""


def while_accumulating(
    steps: Steps,
    wrapping: Wrapping,
    run: TrainingRun | None,
    script: Script | None,
    words: FrameworkWords,
) -> Iterator[Finding]:
    models = wrapping.wrappers
    ranks = {one.rank for one in models}
    # Several models or optimizers that step alternately each need the gradients of their passes.
    alternates = len(models) > len(ranks) or (run is not None and len(run.optimizers) > 1)
    if len(ranks) < 2 or alternates or any(one.kind != "ddp" for one in models):
        return
    if steps.count < ENOUGH_STEPS or not all(map(_accumulates, steps.ranks)):
        return
    passes = round(median(one for rank in steps.ranks for one in rank.backwards))
    transfer = steps.share("transfer")
    saved = transfer * (passes - 1) / passes
    reduces = max(one.reduction_seconds for one in models)
    # Computation hides what it runs beside, and is slowed down by it.
    hidden = min(1.0, reduces * (passes - 1) / steps.step) if steps.step else 0.0
    holds = script.holds_back if script is not None else None
    without = f", though {shown(holds)} is to prevent that" if holds is not None else ""
    yield Finding(
        severity=Severity.WARNING
        if saved >= WARNING_SHARE or hidden >= HIDDEN_SHARE
        else Severity.NOTE,
        confidence=Confidence.CERTAIN,
        because=(
            f"DDP reduces the gradients in all {passes} backward passes of a step instead of once"
            f"{without}: the transfer takes {transfer:.1%} of the step, of which {saved:.1%} are "
            "wasted"
        ),
        evidence=(
            Observation(name="backward passes per step", value=passes),
            Observation(
                name="backward passes with a reduction",
                value=passes,
                expected=1,
                source="DDP's no_sync",
            ),
            *(
                Observation(name=name, value=round(100 * share, 1), unit="% of step")
                for name, share in (
                    ("transfer that backward does not hide", transfer),
                    ("waiting for other ranks", steps.share("waiting")),
                    ("reductions that backward may hide", hidden),
                )
            ),
        ),
        cost=Cost(value=round(saved, 4), unit="share of step"),
        fixes=tuple(_fixes(passes, saved, words, held=holds is not None)),
    )


def in_the_source(script: Script, recorded: Wrapping | None) -> Iterator[Finding]:
    if recorded is not None:
        return  # what was measured during the training is better evidence
    wrapped = script.of("torch.nn.parallel.DistributedDataParallel")
    by_accelerate = script.of("accelerate.Accelerator")
    by_fabric = script.of(".setup")
    # Fabric wraps the model in its setup.
    fabric = len(by_fabric) == 1 and not wrapped and is_plain(script, "Lightning")
    alone = (len(wrapped) == 1 and is_plain(script)) or fabric
    prepared = len(by_accelerate) == 1 and not (wrapped or script.of(".accumulate"))
    if not (alone or prepared) or script.holds_back:
        return
    steps = [one for one in _in_training(script, ".step") if STEPS.search(one.on)]
    passes = _in_training(script, ".backward")
    # One optimizer and one loss: with several, each needs the gradients of its own pass.
    if len(steps) != 1 or len(passes) != 1 or passes[0].step not in ((), ("loop",)):
        return
    (step,), (back,) = steps, passes
    together = step.at.file == back.at.file
    counted = COUNTED.search(step.test) is not None and "condition" in step.step
    if together and (counted or (back.step == ("loop",) and step.in_each_step)):
        when = f"only if {step.test}" if counted else "after the inner loop"
        last = step.test if counted else _last_turn(back)
        yield Finding(
            # Scripts that may run on TPUs or one GPU count by hand, often with one step.
            severity=Severity.NOTE if prepared else Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(step.at)} runs {when}, but {shown(back.at)} runs in every "
                f"micro-step, and no line calls {'no_sync' if alone else 'accumulate or no_sync'}: "
                f"DDP ({shown((wrapped or by_fabric or by_accelerate)[0].at)}) reduces the "
                "gradients each time"
            ),
            fixes=(
                Fix.python(
                    summary="let accelerate accumulate: it holds the gradients back, and divides "
                    "the loss",
                    paste=(
                        "accelerator = Accelerator(gradient_accumulation_steps=N)\n"
                        "with accelerator.accumulate(model):\n"
                        "    ...  # forward and loss, not divided\n"
                        "    accelerator.backward(loss)\n"
                        f"    {step.at.text}\n"
                        "    optimizer.zero_grad()"
                    ),
                )
                if prepared
                else Fix.python(
                    summary="run forward and backward inside no_sync(), except in the last "
                    "micro-step",
                    paste=(
                        "from contextlib import nullcontext\n"
                        "\n"
                        f"last = {last}\n"
                        "with nullcontext() if last else model.no_sync():\n"
                        "    ...  # forward and loss\n"
                        f"    {back.at.text}\n"
                        "if last:\n"
                        f"    {step.at.text}"
                    ),
                ),
            ),
        )


def _last_turn(back: SourceCall) -> str:
    """The condition of the last turn of the loop around a call, by the script's own names."""
    header = back.loop.text if back.loop is not None else ""
    if found := COUNTS.fullmatch(header):
        name, count = found["name"], found["count"]
        return f"{name} == {count if ATOM.fullmatch(count) else f'({count})'} - 1"
    if found := NUMBERS.fullmatch(header):
        return f"{found['name']} == len({found['parts']}) - 1"
    if found := TAKES.fullmatch(header):
        return (
            f"number == len({found['parts']}) - 1"
            f"  # of: for number, {found['name']} in enumerate({found['parts']})"
        )
    return "micro_step == micro_steps - 1"


def _in_training(script: Script, method: str) -> list[SourceCall]:
    """The calls of a method in the training loop, except for those of the script's own methods."""
    return [one for one in script.of(method) if "training" in one.within and not one.of_script]


def _accumulates(rank: RankSteps) -> bool:
    """Whether nearly all steps accumulate several passes, each with a reduction."""
    if any(number > 1 for number in rank.optimizer_steps):
        return False
    rows = list(zip(rank.forwards, rank.backwards, rank.synced_backwards, strict=False))
    needless = [row for row in rows if row[1] > 1 and row[0] == row[1] == row[2]]
    return len(rows) >= ENOUGH_STEPS and len(needless) >= NEARLY_ALL * len(rows)


def _fixes(passes: int, saved: float, words: FrameworkWords, *, held: bool) -> Iterator[Fix]:
    gain = f"at least {saved:.1%} of the step, and fewer waits for other ranks"
    if words.has("accumulate"):
        yield Fix.python(
            summary=f"let {words.framework} accumulate",
            paste=words.written("accumulate", passes),
            caution=f"it divides the loss by {passes}: do not divide it again",
            expected_gain=gain,
        )
    if words.framework == "accelerate":
        yield Fix.python(
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
            caution=f"accelerate divides the loss by {passes}: do not divide it again",
            expected_gain=gain,
        )
    yield accumulate(
        passes,
        summary="enter no_sync() before the forward pass, which decides: around backward alone it "
        "has no effect"
        if held
        else "run forward and backward inside no_sync(), except in the last micro-step",
        gain=gain,
    )
