"""The optimizer step runs on the CPU, because its states were offloaded to host memory.

Offloading sends gradients over PCIe to the host, updates there, and sends parameters back in each
step. It is worth that only where the model does not fit otherwise: more ranks, activation
checkpointing or a smaller micro-batch cost less.

Symptoms: GPUs idle at the end of each step while all CPU cores work; the step takes several times
as long as without offloading.

To fix it, switch offloading off if the model fits without it (``ddoctor plan`` says so), or use
DeepSpeed's own CPU optimizer, and a larger batch for each step.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.launch import Setting
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

# DeepSpeed's file, and the keys of accelerate's.
OF_DEEPSPEED = (
    "deepspeed.zero_optimization.offload_optimizer.device",
    "deepspeed.offload_optimizer_device",
)
OF_FSDP = "fsdp.offload_params"
# deepspeed/runtime/engine.py: it refuses another optimizer, unless this is off.
FORCED = "deepspeed.zero_force_ds_cpu_optimizer"


def in_a_launch(plan: LaunchPlan) -> Iterator[Finding]:
    """What it costs, only a run shows; whether it is needed, a plan does."""
    if (one := _offloaded(plan)) is not None:
        yield Finding(
            severity=Severity.NOTE,
            confidence=Confidence.POSSIBLE,
            because=f"the optimizer step runs on the CPU ({one.at}); needed only if the model does "
            "not fit on the GPUs otherwise",
            evidence=(Observation(name=one.name, value=one.value, source=one.at),),
            fixes=(
                Fix(
                    summary="see whether the model fits without offloading",
                    paste="ddoctor plan MODEL --gpus N",
                ),
            ),
        )


def with_an_optimizer_of_torch(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    one, forced = plan.get(*OF_DEEPSPEED), plan.get(FORCED)
    if one is None or one.value == "none" or (forced is not None and not forced.on):
        return
    for call in script.of("deepspeed.initialize"):
        made = call.origin("optimizer", 1)
        if made and all(origin.startswith("torch.optim.") for origin in made):
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=f"the optimizer is offloaded to the {one.value} ({one.at}), and "
                f"{shown(call.at)} passes {made[0]}, which DeepSpeed refuses there",
                evidence=(Observation(name="optimizer", value=made[0], source=call.at.place),),
                fixes=(
                    Fix.python(
                        summary="use the optimizer that DeepSpeed made for CPUs",
                        paste="from deepspeed.ops.adam import DeepSpeedCPUAdam\n"
                        "optimizer = DeepSpeedCPUAdam(model.parameters(), lr=lr)",
                    ),
                ),
            )
            return


def _offloaded(plan: LaunchPlan) -> Setting | None:
    found = plan.get(*OF_DEEPSPEED)
    if found is not None and found.value != "none":
        return found
    return plan.launch.get(OF_FSDP) if plan.launch.on(OF_FSDP) else None
