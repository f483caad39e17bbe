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

from collections.abc import Iterator

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

OPTIMIZERS = "torch.optim."


def in_the_source(script: Script) -> Iterator[Finding]:
    for one in script.stale_optimizers[:1]:
        apart = one.at.function != one.wrap.function
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(one.at)} takes the parameters of the model, and {shown(one.wrap)} "
                "replaces them afterwards: the optimizer updates the old ones"
            ),
            fixes=(
                Fix.python(
                    summary="shard the model first",
                    paste=f"{one.wrap.text}\n{one.at.text}",
                    caution="the lines are in different functions: call them in this order"
                    if apart
                    else "",
                ),
            ),
        )


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
