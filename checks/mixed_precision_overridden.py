"""Two places set the precision, and only one of them counts.

Under ``accelerate launch`` its own setting decides how the model computes. A script's own switch
(LeRobot's ``--policy.use_amp``) then does nothing. A run that is meant for bf16 trains in fp32: it
is slower, and needs more memory.

Symptoms: no gain from mixed precision; twice the memory for activations.

To fix it, set the precision where it counts: ``accelerate launch --mixed_precision bf16``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

OWN_SWITCHES = ("arg.policy.use_amp", "arg.use_amp")
"""Of scripts that call autocast themselves, unless accelerate prepares their model."""


def in_a_launch(launch: Launch) -> Iterator[Finding]:
    if launch.launcher != "accelerate":
        return
    decides = launch.get("precision")
    if decides is not None and decides.value not in ("no", "null", ""):
        return
    for name in OWN_SWITCHES:
        own = launch.get(name)
        if own is None or not own.on or "lerobot" not in launch.script:
            continue
        where = f"is off ({decides.at})" if decides is not None else "is not set"
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{name[4:]} is on ({own.at}), but does nothing under accelerate, whose mixed "
            f"precision {where}: the model trains in fp32",
            evidence=(Observation(name=name[4:], value=own.value, source=own.at),),
            fixes=(
                Fix(
                    summary="set the precision where it counts",
                    paste="accelerate launch --mixed_precision bf16 …",
                ),
            ),
        )


def by_the_script(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """What the script gives to Accelerator counts, and the launch asks for another precision."""
    asked = plan.launch.get("precision")
    if plan.launch.launcher != "accelerate" or asked is None or asked.value not in ("bf16", "fp16"):
        return
    for one in script.of("accelerate.Accelerator"):
        given = one.argument("mixed_precision") or ""
        counts = _value(given, plan)
        if counts in ("no", "fp32") or (counts in ("bf16", "fp16") and counts != asked.value):
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.at)} gets {counts!r} here, and that counts; the launch asks "
                f"for {asked.value} ({asked.at})",
                evidence=(Observation(name="precision of the launch", value=asked.value),),
                fixes=(
                    Fix.python(
                        summary="leave it to the launch",
                        paste="accelerator = Accelerator()  # without mixed_precision",
                    ),
                ),
            )
            return


def _value(text: str, plan: LaunchPlan) -> str:
    """A literal, an argument of the script, or a choice by one of its flags; empty: unknown."""
    if match := re.fullmatch(r"""(['"])(\w+)\1""", text):
        return match[2]
    if match := re.fullmatch(r"(['\"]\w+['\"]) if (\w+\.\w+) else (['\"]\w+['\"])", text):
        flag = plan.launch.argument(match[2])
        return _value(match[1] if flag is not None and flag.on else match[3], plan)
    setting = plan.launch.argument(text) if "." in text else None
    return setting.value if setting is not None else ""
