"""How long a launch trains, its schedule and its checkpoints, in words."""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import schedule_plan
from ddoctor.analysis.launch_plan import DECAY, EPOCHS, WARM_UP, LaunchPlan
from ddoctor.analysis.named_models import named_models
from ddoctor.evidence.script import Script

KEPT = "arg.save_total_limit"


def rows(plan: LaunchPlan, script: Script | None) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line that is known."""
    steps = schedule_plan.all_steps(plan, script)
    schedule = schedule_plan.schedule(plan, steps)
    told = [*schedule_plan.words(schedule)] if schedule is not None else []
    if length := _length(plan, steps, scheduled=schedule is not None):
        yield "length", length
    if schedule is not None and (schedule.steps or len(told) > 1):
        yield "schedule", ", ".join(told)
    if text := _checkpoints(plan, steps, script):
        yield "checkpoints", text


def _length(plan: LaunchPlan, steps: int | None, *, scheduled: bool) -> str:
    parts = []
    epoch = plan.steps_per_epoch
    if plan.steps is not None and steps is not None:
        parts.append(f"{steps:,} optimizer steps ({plan.steps.at})")
        if epoch:
            parts.append(f"{steps / epoch:.1f} epochs")
    elif (epochs := plan.get(*EPOCHS)) is not None:
        whole = f" = {steps:,} optimizer steps" if steps else ""
        parts.append(f"{epochs.value} epochs ({epochs.at}){whole}")
    if epoch is not None:
        samples = plan.launch.number("samples")
        drops = f" and drops {dropped:,}" if (dropped := plan.dropped) else ""
        parts.append(
            f"an epoch of {samples:,} samples is {epoch:,} step{'s' * (epoch != 1)}{drops}"
        )
    warm_up = None if scheduled else plan.get(*WARM_UP)
    named = (("warm-up", warm_up), ("decay over", plan.get(*DECAY)))
    for words, found in (*named, ("saves every", plan.saves_every)):
        if found is not None and (found.number or 0) > 0:
            parts.append(f"{words} {found.number or 0:,}")
    return ", ".join(parts)


def _checkpoints(plan: LaunchPlan, steps: int | None, script: Script | None) -> str:
    """How many, and the size of the weights where the model's name says it."""
    parts = []
    count = schedule_plan.checkpoints(plan, steps)
    kept = plan.launch.number(KEPT) if plan.by_trainer else None
    if count is not None:
        last = f", the last {kept} kept" if kept and kept < count else ""
        parts.append(f"{count:,} in all{last}")
    model = next(named_models(plan, script), None)
    if model is not None:
        # FSDP trains a copy of the weights in fp32, whatever the layers compute in.
        whole = plan.strategy.startswith("FSDP") and plan.precision is not None
        each = (4 if whole or not model.halves else 2) * model.billions
        why = " (FSDP keeps the weights in fp32)" if whole and model.halves else ""
        parts.append(f"{each:,.0f} GB of weights each{why}")
        if count and count > 1:
            parts.append(f"{each * count:,.0f} GB written in all")
    return ", ".join(parts)
