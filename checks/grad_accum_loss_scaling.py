"""The loss is divided by the accumulation steps twice: by the script, and by the framework.

accelerate and DeepSpeed divide the loss by their own number of accumulation steps in ``backward``.
If the script divides it as well, the gradients are too small by that factor.

Symptoms: the loss falls more slowly than without accumulation, or hardly at all with a small rate.

To fix it, pass the undivided loss to ``backward``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script, SourceCall
from ddoctor.models import Confidence, Finding, Fix, Severity

STEPS = re.compile(r"/\s*[\w.\[\]()'\"]*(?:accum|\bgas\b|\bga_steps\b)", re.I)


def in_the_source(script: Script) -> Iterator[Finding]:
    for one in script.of(".backward"):
        by = _divides(one, script)
        if by and STEPS.search(f"{one.argument('loss', 0) or ''} {one.values.get('0', '')}"):
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.at)} gets a loss that is divided by the accumulation steps, "
                f"and {by} divides it by them again",
                fixes=(
                    Fix.python(
                        summary="pass the loss undivided",
                        paste=f"{one.on}.backward(loss)",
                        caution="for the log, divide nothing either: it is the mean of one batch",
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
