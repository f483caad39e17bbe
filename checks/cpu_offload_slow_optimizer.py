"""The optimizer step runs on the CPU, because its states were offloaded to host memory.

Offloading sends gradients over PCIe to the host, updates there, and sends parameters back in each
step. It is worth that only where the model does not fit otherwise: more ranks, activation
checkpointing or a smaller micro-batch cost less.

Symptoms: GPUs idle at the end of each step while all CPU cores work; the step takes several times
as long as without offloading.

To fix it, switch offloading off if the model fits without it (``ddoctor plan`` says so), or use
DeepSpeed's own CPU optimizer, and a larger batch for each step.
"""

# Above 150 lines: what a launch and a script say, and the timers of a log.

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import printed_times
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.launch import Setting
from ddoctor.evidence.log import Log
from ddoctor.evidence.printed_figures import PrintedTimes
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

# DeepSpeed's file, and the keys of accelerate's.
OF_DEEPSPEED = (
    "deepspeed.zero_optimization.offload_optimizer.device",
    "deepspeed.offload_optimizer_device",
)
OF_FSDP = "fsdp.offload_params"
# deepspeed/runtime/engine.py: it refuses another optimizer, unless this is off.
STAGE = ("zero-stage", "deepspeed.zero_optimization.stage", "deepspeed.zero_stage")
OF_TORCH = "deepspeed.optimizer.params.torch_adam"
ADAMS = ("torch.optim.Adam", "torch.optim.AdamW")
FORCED = "deepspeed.zero_force_ds_cpu_optimizer"
# Backward does twice the arithmetic of forward, and the update of a parameter is a few operations:
# on GPUs it takes a small part of the passes.
MUCH_LONGER = 2.0


def in_a_launch(plan: LaunchPlan, script: Script | None) -> Iterator[Finding]:
    """What it costs, only a run shows; whether it is needed, a plan does."""
    one = _offloaded(plan)
    if one is not None and (slow := _of_torch(plan, script)):
        yield Finding(
            title="torch's optimizer runs on the CPU, where DeepSpeed's own is much faster",
            # Where DeepSpeed would refuse it, the file allows it on purpose.
            severity=Severity.NOTE,
            confidence=Confidence.LIKELY,
            because=f"the optimizer step runs on the CPU ({one.at}), and by {slow}: "
            "DeepSpeed's own is 5 to 7 times faster there, as its documentation says",
            evidence=(
                Observation(
                    name=one.name,
                    value=one.value,
                    source="https://deepspeed.readthedocs.io/en/latest/optimizers.html",
                ),
            ),
            fixes=(
                Fix.python(
                    summary="use the optimizer that DeepSpeed made for CPUs",
                    paste="from deepspeed.ops.adam import DeepSpeedCPUAdam\n"
                    "optimizer = DeepSpeedCPUAdam(model.parameters(), lr=lr)",
                )
                if plan.launch.get(OF_TORCH) is None
                else Fix(
                    summary="use the optimizer that DeepSpeed made for CPUs",
                    paste='"torch_adam": false',
                    language="text",
                ),
            ),
        )
    elif one is not None:
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


def in_printed_times(times: PrintedTimes, log: Log | None) -> Iterator[Finding]:
    """By the timers of DeepSpeed or Megatron."""
    slow = [
        one
        for one in times.tables
        if one.count >= printed_times.STEPS
        and one.optimizer is not None
        and one.passes
        and one.optimizer >= MUCH_LONGER * one.passes
    ]
    if not slow:
        return
    table, shown_by = slow[0], log.first("optimizer-offloaded") if log is not None else None
    seconds, passes = table.optimizer or 0.0, table.passes or 0.0
    why = (
        f"it is offloaded ({shown_by.place})"
        if shown_by is not None
        else "no line says that it is offloaded, so look at the configuration"
    )
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY if shown_by is not None else Confidence.POSSIBLE,
        because=f"{printed_times.whence(table)}: the optimizer takes "
        f"{printed_times.part(table, seconds)}, {seconds / passes:.1f} times as long as the "
        f"forward and backward passes; {why}",
        evidence=(
            Observation(
                name="optimizer by forward and backward passes",
                value=round(seconds / passes, 2),
                expected=MUCH_LONGER,
                source=table.place,
            ),
        ),
        where=Where(ranks=table.ranks),
        cost=Cost(value=round(seconds / table.whole, 3), unit="share of step"),
        fixes=(
            Fix(
                summary="see whether the model fits without offloading",
                paste="ddoctor plan MODEL --gpus N",
            ),
            Fix(
                summary="or do more work per optimizer step",
                paste='"gradient_accumulation_steps": 8',
                language="text",
                caution="the batch gets larger: adapt learning rate and schedule",
            ),
        ),
    )


def _of_torch(plan: LaunchPlan, script: Script | None) -> str:
    """The optimizer of torch that DeepSpeed is to use; empty: none, or unknown."""
    given, forced = plan.launch.get(OF_TORCH), plan.get(FORCED)
    if given is not None and given.on:
        return f"torch's own Adam (torch_adam, {given.at})"
    allowed = forced is not None and not forced.on and plan.get(*OF_DEEPSPEED) is not None
    for call in script.of("deepspeed.initialize") if allowed and script is not None else ():
        made = call.origin("optimizer", 1)
        if made and all(origin in ADAMS for origin in made):
            return f"{made[0]} ({call.at.place})"
    return ""


def _offloaded(plan: LaunchPlan) -> Setting | None:
    found, stage = plan.get(*OF_DEEPSPEED), plan.get(*STAGE)
    # Without ZeRO nothing is offloaded.
    if found is not None and stage is not None and stage.number == 0:
        return None
    if found is not None and found.value != "none":
        return found
    return plan.launch.get(OF_FSDP) if plan.launch.on(OF_FSDP) else None
