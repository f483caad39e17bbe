"""Two places set the precision, and only one of them counts.

Under ``accelerate launch`` its own setting decides how the model computes. A script's own switch
(LeRobot's ``--policy.use_amp``) then does nothing. A run that is meant for bf16 trains in fp32: it
is slower, and needs more memory.

Symptoms: no gain from mixed precision; twice the memory for activations.

To fix it, set the precision where it counts: ``accelerate launch --mixed_precision bf16``.
"""

# Above 150 lines: the launch, the Trainer and the script each may set another precision.

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourcePrecision
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

OWN_SWITCHES = ("arg.policy.use_amp", "arg.use_amp")
"""Of scripts that call autocast themselves, unless accelerate prepares their model."""

MIXED = ("bf16", "fp16")
NAMES = {
    "torch.float16": "fp16",
    "torch.half": "fp16",
    "torch.bfloat16": "bf16",
    "torch.float32": "fp32",
    "torch.float": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
}
"""The names of types as accelerate writes them."""


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


def by_the_trainer(plan: LaunchPlan) -> Iterator[Finding]:
    """TrainingArguments ask for one 16-bit type, the launch for the other.

    Source: transformers/training_args.py, __post_init__: theirs replaces that of the launch.
    """
    asked, counts = plan.launch.get("precision"), plan.precision
    if plan.launch.launcher != "accelerate" or not plan.by_trainer or asked is None:
        return
    own = counts is not None and counts.name == "precision" and counts.at != asked.at
    if counts is not None and own and {asked.value, counts.value} == {*MIXED}:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{counts.value} is on for the Trainer ({counts.at}), and that counts; the "
            f"launch asks for {asked.value} ({asked.at})",
            evidence=(Observation(name="precision of the launch", value=asked.value),),
            fixes=(
                Fix(
                    summary="ask for one type in both places",
                    paste=f"{asked.value}: true   # of TrainingArguments, and no {counts.value}",
                    language="yaml",
                ),
            ),
        )


def by_the_script(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """What the script gives to Accelerator counts, and the launch asks for another precision."""
    asked = plan.launch.get("precision")
    if plan.launch.launcher != "accelerate" or asked is None or asked.value not in MIXED:
        return
    for one in script.precisions:
        counts = _value(one, plan) if one.place == "accelerator" else ""
        if counts in ("no", "fp32") or (counts in MIXED and counts != asked.value):
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


def by_its_own_autocast(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """The script opens an autocast for a model that accelerate or DeepSpeed runs otherwise."""
    runner, by, where = _runner(plan, script)
    for one in script.precisions if by in MIXED else ():
        own = _value(one, plan) if one.place != "accelerator" else ""
        if own in MIXED and own != by:
            outcome = f"the model computes in {by}, and only what is outside of it in {own}"
            if one.place == "forward":
                outcome = f"its forward pass computes in {own} all the same"
                outcome += ", and nothing scales the loss" * (own == "fp16")
            elif runner == "DeepSpeed":
                outcome = "which of both counts depends on the version of DeepSpeed"
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.at)} opens an autocast for {own} "
                f"{'in' if one.place == 'forward' else 'around'} a model that {runner} runs in "
                f"{by} ({where}): {outcome}",
                evidence=(Observation(name=f"precision of {runner}", value=by, source=where),),
                fixes=(
                    Fix.python(
                        summary="use the autocast of accelerate",
                        paste="with accelerator.autocast():\n    ...",
                    )
                    if runner == "accelerate" and one.place == "step"
                    else Fix.python(
                        summary=f"leave the precision to {runner}",
                        paste=f"# without {one.at.place}: {one.at.text.splitlines()[0]}",
                    ),
                ),
            )
            return


def _runner(plan: LaunchPlan, script: Script) -> tuple[str, str, str]:
    """What runs the model, in which precision, and what says so."""
    given = next((one for one in script.precisions if one.place == "accelerator"), None)
    if given is not None and given.values != ("None",):
        return "accelerate", _value(given, plan), given.at.place
    asked = plan.launch.get("precision")
    if asked is not None and plan.launch.launcher == "accelerate":
        return "accelerate", asked.value, asked.at
    engine = plan.precision if script.of("deepspeed.initialize") else None
    return "DeepSpeed", engine.value if engine else "", engine.at if engine else ""


def _value(one: SourcePrecision, plan: LaunchPlan) -> str:
    """The precision of a call, with the arguments of the launch; empty: unknown."""
    values = one.values
    if one.flag:
        flag = plan.launch.argument(one.flag)
        values = values[:1] if flag is not None and flag.on else values[1:]
    found = {_resolved(text, plan) for text in values}
    return found.pop() if len(found) == 1 else ""


def _resolved(text: str, plan: LaunchPlan) -> str:
    setting = plan.launch.argument(text) if "." in text and text not in NAMES else None
    value = setting.value if setting is not None else text
    return NAMES.get(value, value)
