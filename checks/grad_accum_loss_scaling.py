"""Losses of accumulated micro-batches are divided twice, not at all, or in vain.

accelerate and DeepSpeed divide the loss by their own number of accumulation steps in ``backward``.
If the script divides it as well, the gradients are too small by that factor. If the script calls
``loss.backward()`` itself, nothing divides it. If it never enters ``accelerator.accumulate``, or
keeps its optimizer from accelerate, each micro-batch makes its own step.

A mean over the tokens of each micro-batch, divided by the number of micro-steps, is another mistake
of scale: tokens of short texts weigh more than those of long ones.

Symptoms: the loss falls more slowly than without accumulation, or hardly at all with a small rate.

To fix it, pass the undivided loss to ``backward``. For tokens that weigh the same, divide the sum
of their losses by the tokens of all micro-batches and ranks.
"""

# Above 150 lines: three mistakes with the framework that accumulates, and one of tokens.

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.prepared_models import prepared_names
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.models import Confidence, Finding, Fix, Severity

ACCUMULATES = ("gradient_accumulation_steps", "gradient_accumulation_plugin")
STEPS = re.compile(r"optim|^opt", re.IGNORECASE)


def in_the_source(script: Script) -> Iterator[Finding]:
    divided = {one.back: one.at for one in script.divided_losses}
    for one in script.of(".backward"):
        by = _divides(one, script) if one.at in divided else ""
        if by:
            line = divided[one.at]
            where = f" ({shown(line)})" if line != one.at else ""
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.at)} gets a loss that is divided by the accumulation "
                f"steps{where}, and {by} divides it by them again",
                fixes=(
                    Fix.python(
                        summary="pass the loss undivided",
                        paste=f"{one.on}.backward(loss)",
                        caution="for the log, divide nothing either: it is the mean of one batch",
                    ),
                ),
            )
            return


def past_accelerate(script: Script) -> Iterator[Finding]:
    """A backward pass without accelerate, which then divides nothing."""
    if _accelerator(script) is None or not script.of(".accumulate"):
        return
    divided = {one.back for one in script.divided_losses}
    for one in script.of(".backward"):
        of_tensor = not (one.of_script or _is_of_accelerate(one))
        if "training" in one.within and of_tensor and one.at not in divided:
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                title="Nothing divides the losses of accumulated micro-batches",
                because=f"{shown(one.at)} makes the backward pass without accelerate, whose "
                "backward divides the loss by the accumulation steps: the gradients are the sum "
                "over the micro-batches, and not their mean",
                fixes=(
                    Fix.python(
                        summary="let accelerate make the backward pass",
                        paste=f"accelerator.backward({one.on or 'loss'})",
                        caution="float16 and DeepSpeed need it, too",
                    ),
                ),
            )
            return


def each_micro_batch_steps(script: Script, launch: Launch | None) -> Iterator[Finding]:
    """accelerate divides the loss for several micro-batches, and each of them makes a step."""
    # DeepSpeed's engine counts the micro-batches itself.
    if launch is not None and any(
        "deepspeed" in f"{one.name} {one.value}" for one in launch.settings
    ):
        return
    own = _accelerator(script)
    back = next((one for one in script.of(".backward") if _is_of_accelerate(one)), None)
    steps = [one for one in script.of(".step") if STEPS.search(one.on) and "training" in one.within]
    if own is None or back is None or script.holds_back or len(steps) != 1 or script.unseen:
        return
    (step,) = steps
    if not step.in_each_step and step.step != ("no-sync",):
        return
    if not script.of(".accumulate"):
        lacks = "no line enters accelerator.accumulate"
    elif _is_kept_back(step, script):
        lacks = f"{step.on} is not among what accelerator.prepare gets"
    else:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        title="Each micro-batch makes a step, although accelerate accumulates",
        because=f"{shown(own.at)} divides each loss by the accumulation steps, and {lacks}: "
        f"{shown(step.at)} makes a step after each micro-batch, with gradients that are too small "
        "by that factor",
        fixes=(
            Fix.python(
                summary="let accelerate leave out the steps between",
                paste="model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
                "with accelerator.accumulate(model):  # around forward, backward and step\n"
                "    accelerator.backward(criterion(model(inputs), targets))\n"
                "    optimizer.step()\n"
                "    optimizer.zero_grad()",
            ),
        ),
    )


def _is_kept_back(step: SourceCall, script: Script) -> bool:
    """Whether accelerate surely does not know the optimizer of a step."""
    names = prepared_names(script, "prepare_optimizer")
    made = any(
        one.assigned == step.on and one.name.startswith("torch.optim.") for one in script.calls
    )
    return bool(names) and made and step.on not in names


def of_tokens(script: Script) -> Iterator[Finding]:
    """The mean over the tokens of a micro-batch, where micro-batches differ in them."""
    for one in script.token_means:
        says = f"; the source says: {one.alike}" if one.alike else ""
        yield Finding(
            # Many scripts do so on purpose, or with texts of nearly one length.
            severity=Severity.WARNING if one.alike else Severity.NOTE,
            confidence=Confidence.LIKELY if one.alike else Confidence.POSSIBLE,
            title="Tokens of short micro-batches weigh more than those of long ones",
            because=f"{shown(one.at)} is a mean over the tokens of one micro-batch of one rank, "
            f"and {shown(one.back)} averages it over the micro-steps, whatever their numbers of "
            f"tokens{says}",
            fixes=(
                Fix.python(
                    summary="divide the sum over all tokens of the step by their number",
                    paste='tokens = sum((batch["labels"] != -100).sum() for batch in group)\n'
                    "dist.all_reduce(tokens)\n"
                    'loss = F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")\n'
                    "(loss * dist.get_world_size() / tokens).backward()",
                    caution="with a model that shifts its labels, count the shifted ones",
                ),
            ),
        )
        return


def _divides(call: SourceCall, script: Script) -> str:
    """What divides the loss in this method; empty: nothing is known to."""
    if _is_of_accelerate(call):
        accumulates = _accelerator(script) is not None and script.of(".accumulate")
        return "accelerator.backward" if accumulates else ""
    engine = any(one.framework == "DeepSpeed" for one in script.imports)
    return "DeepSpeed's engine.backward" if engine and "engine" in call.on.lower() else ""


def _is_of_accelerate(call: SourceCall) -> bool:
    return any(one.startswith("accelerate.") for one in call.made_by)


def _accelerator(script: Script) -> SourceCall | None:
    """The Accelerator that accumulates; None: there is none."""
    for one in script.of("accelerate.Accelerator"):
        given = [one.keywords[name] for name in ACCUMULATES if name in one.keywords]
        if given and given != ["1"]:
            return one
    return None
