"""The loss is divided by the accumulation steps twice: by the script, and by the framework.

accelerate and DeepSpeed divide the loss by their own number of accumulation steps in ``backward``.
If the script divides it as well, the gradients are too small by that factor.

A mean over the tokens of each micro-batch, divided by the number of micro-steps, is another mistake
of scale: tokens of short texts weigh more than those of long ones.

Symptoms: the loss falls more slowly than without accumulation, or hardly at all with a small rate.

To fix it, pass the undivided loss to ``backward``. For tokens that weigh the same, divide the sum
of their losses by the tokens of all micro-batches and ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.models import Confidence, Finding, Fix, Severity


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
    if any(one.startswith("accelerate.") for one in call.made_by):
        own = script.of("accelerate.Accelerator")
        accumulates = any(
            name in one.keywords
            for one in own
            for name in ("gradient_accumulation_steps", "gradient_accumulation_plugin")
        )
        return "accelerator.backward" if accumulates and script.of(".accumulate") else ""
    engine = any(one.framework == "DeepSpeed" for one in script.imports)
    return "DeepSpeed's engine.backward" if engine and "engine" in call.on.lower() else ""
