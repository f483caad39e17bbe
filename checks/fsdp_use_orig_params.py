"""The optimizer was made before FSDP, so it updates parameters that the model no longer uses.

FSDP replaces the parameters of a model: FSDP1 by flat ones, FSDP2 by DTensors. An optimizer that
was built from ``model.parameters()`` before keeps the old ones. Its steps then change nothing that
the forward pass reads.

Symptoms: the loss does not fall; memory is not freed after the model was sharded; or an error about
parameters without gradients.

To fix it, shard the model first, then make the optimizer. FSDP1 with ``use_orig_params=True`` keeps
the parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script, SourceCall
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
FSDP2 = "torch.distributed.fsdp.fully_shard"
OPTIMIZERS = "torch.optim."


def in_the_source(script: Script) -> Iterator[Finding]:
    optimizers = [one for one in script.calls if _is_optimizer(one)]
    for wrap in script.of(FSDP1, FSDP2):
        model = wrap.argument("module", 0)
        if wrap.argument("use_orig_params") not in (None, "False") or "**" in wrap.keywords:
            continue
        near = [one for one in optimizers if _together(one, wrap)]
        before = [one for one in near if one.at.line < wrap.at.line and _of(one, model)]
        after = [one for one in near if one.at.line > wrap.at.line]
        if before and not after:
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=(
                    f"{shown(before[0].at)} takes the parameters of {model}, and "
                    f"{shown(wrap.at)} replaces them afterwards: the optimizer updates the old ones"
                ),
                fixes=(
                    Fix.python(
                        summary="shard the model first",
                        paste=f"{wrap.at.text}\n{before[0].at.text}",
                    ),
                ),
            )
            return


def in_a_helper(script: Script) -> Iterator[Finding]:
    """A function of the script shards the model, and the optimizer was made before its call."""
    inner = {one.at.function for one in script.of(FSDP2)}
    for call in script.sharding_calls:
        made = [
            one
            for one in script.calls
            if _is_optimizer(one)
            and (one.at.file, one.at.function) == (call.at.file, call.at.function)
        ]
        before = [
            one
            for one in made
            if one.at.line < call.at.line and re.search(rf"\b{call.model}\b", one.at.text)
        ]
        if inner and before and len(made) == len(before):
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=(
                    f"{shown(before[0].at)} takes the parameters of {call.model}, and "
                    f"{shown(call.at)} replaces them afterwards: the optimizer updates the old ones"
                ),
                fixes=(
                    Fix.python(
                        summary="shard the model first",
                        paste=f"{call.at.text}\n{before[0].at.text}",
                    ),
                ),
            )
            return


def with_accelerate(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """FSDP1 then needs the model prepared before the optimizer is made."""
    kept = plan.launch.get("fsdp.use_orig_params")
    if plan.strategy != "FSDP1" or kept is None or kept.value.lower() != "false":
        return
    for one in script.of(".prepare"):
        made = [origin for given in one.origins.values() for origin in given]
        if any(origin.startswith(OPTIMIZERS) for origin in made) and len(one.origins) > 1:
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=(
                    f"fsdp_use_orig_params is off ({kept.at}), and {shown(one.at)} prepares an "
                    "optimizer that was made from the model before FSDP replaced its parameters"
                ),
                evidence=(Observation(name="use_orig_params", value="false", source=kept.at),),
                fixes=(
                    Fix(
                        summary="keep the original parameters",
                        paste="fsdp_use_orig_params: true",
                        caution="or prepare the model, and only then make the optimizer",
                    ),
                ),
            )
            return


def _is_optimizer(call: SourceCall) -> bool:
    inner = call.name.removeprefix(OPTIMIZERS)
    return call.name.startswith(OPTIMIZERS) and "." not in inner and bool(call.assigned)


def _together(optimizer: SourceCall, wrap: SourceCall) -> bool:
    """Whether one runs if the other does."""
    same = optimizer.at.file == wrap.at.file and optimizer.at.function == wrap.at.function
    return same and (optimizer.within, optimizer.test) == (wrap.within, wrap.test)


def _of(optimizer: SourceCall, model: str | None) -> bool:
    return model is not None and optimizer.argument("params", 0) == f"{model}.parameters()"
