"""Two places set the precision, and only one of them counts.

Under ``accelerate launch`` its own setting decides how the model computes. A script's own switch
(LeRobot's ``--policy.use_amp``) then does nothing. A run that is meant for bf16 trains in fp32: it
is slower, and needs more memory.

Symptoms: no gain from mixed precision; twice the memory for activations.

To fix it, set the precision where it counts: ``accelerate launch --mixed_precision bf16``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.launch import Launch
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
