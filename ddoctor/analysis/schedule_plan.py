"""How long a training is, and how its learning rate changes over it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from ddoctor.analysis.launch_plan import EPOCHS, LaunchPlan
from ddoctor.evidence.launch import Setting
from ddoctor.evidence.script import Script

# transformers/optimization.py: those without an end.
ENDLESS = re.compile(r"constant|inverse_sqrt|plateau|greedy|WarmupLR|OneCycle|LRRange")
OF_DEEPSPEED = "deepspeed.scheduler."
OF_PARAMS = ("total_num_steps", "warmup_num_steps")
OTHER_LENGTHS = ("arg.packing", "arg.streaming", "arg.dataset_streaming", "arg.group_texts")
OF_EPOCHS = ("arg.limit_train_batches", "arg.steps_per_epoch", "arg.max_train_samples", "resized")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule of the learning rate; None: not known."""

    kind: str
    steps: int | None
    """Those over which it changes; None also where it has no end."""
    warm_up: int | None
    share: float | None
    """Of the warm-up in all steps."""
    at: str


def all_steps(plan: LaunchPlan, script: Script | None) -> int | None:
    """Optimizer steps in all: as given, else those of all epochs; None: not known."""
    if plan.steps is not None:
        return plan.steps.number
    epochs, each = _number(plan.get(*EPOCHS)), plan.steps_per_epoch
    samples = plan.launch.number("samples") or 0
    # The last step of an epoch may be cut short, or not be made at all.
    whole = plan.accumulation == 1 or (plan.batch is not None and samples % plan.batch == 0)
    if not epochs or not each or not whole or script is None or not _is_counted(plan, script):
        return None
    return ceil(epochs * each)


def _is_counted(plan: LaunchPlan, script: Script) -> bool:
    """Whether each sample that the source counts is trained on once in an epoch."""
    if any(plan.launch.on(name) for name in OTHER_LENGTHS) or plan.get(*OF_EPOCHS) is not None:
        return False
    loops = [one for one in script.loops if one.kind == "training"]
    exhausts = bool(loops) and all(one.exhausts for one in loops)
    by_hand = script.accumulates is not None and plan.accumulation == 1
    return plan.by_trainer or (exhausts and not by_hand)


def schedule(plan: LaunchPlan, steps: int | None) -> Schedule | None:
    """The schedule that DeepSpeed's file or TrainingArguments give; None: neither does."""
    kind = plan.launch.get(f"{OF_DEEPSPEED}type")
    if kind is not None:
        return _of_deepspeed(plan, kind, steps)
    kind = plan.launch.get("arg.lr_scheduler_type")
    if kind is None or not plan.by_trainer:
        return None
    warm_up, share = _warm_up(plan, steps)
    return Schedule(
        kind=kind.value,
        steps=None if ENDLESS.search(kind.value) else steps,
        warm_up=warm_up,
        share=share,
        at=kind.at,
    )


def _of_deepspeed(plan: LaunchPlan, kind: Setting, steps: int | None) -> Schedule:
    """What is "auto" is the Trainer's (transformers/integrations/deepspeed.py)."""
    given = [plan.launch.get(f"{OF_DEEPSPEED}params.{name}") for name in OF_PARAMS]
    whole, warm_up = (one.number if one is not None else None for one in given)
    if whole is None and given[0] is not None and given[0].value == "auto":
        whole = steps
    if warm_up is None and given[1] is not None and given[1].value == "auto":
        warm_up, _ = _warm_up(plan, steps)
    share = warm_up / whole if warm_up is not None and whole else None
    return Schedule(kind=kind.value, steps=whole, warm_up=warm_up, share=share, at=kind.at)


def _warm_up(plan: LaunchPlan, steps: int | None) -> tuple[int | None, float | None]:
    """Steps, and their share in all; a number below 1 is a share, and steps beat a share.

    Source: transformers/training_args.py, get_warmup_steps.
    """
    given = _number(plan.launch.get("arg.warmup_steps")) or Fraction(0)
    share = given if 0 < given < 1 else _number(plan.launch.get("arg.warmup_ratio"))
    if given < 1 and share:
        return ceil(steps * share) if steps else None, float(share)
    return int(given), int(given) / steps if steps else None


def _number(setting: Setting | None) -> Fraction | None:
    """The value as a number that is not negative; None: it is none."""
    try:
        found = Fraction(setting.value) if setting is not None else None
    except (ValueError, ZeroDivisionError):
        return None
    return found if found is not None and 0 <= found < 10**9 else None


def checkpoints(plan: LaunchPlan, steps: int | None) -> int | None:
    """Checkpoints that are written in all; None: not known."""
    by = plan.launch.get("arg.save_strategy")
    if by is not None and by.value == "epoch" and plan.by_trainer:
        epochs = _number(plan.get(*EPOCHS))
        return ceil(epochs) if epochs and plan.steps is None else None
    every = plan.saves_every.number if plan.saves_every is not None else None
    if not every or not steps:
        return None
    return ceil(steps / every) if plan.by_trainer else steps // every


def words(schedule: Schedule) -> Iterator[str]:
    """Its parts, in words."""
    over = f" over {schedule.steps:,} steps" if schedule.steps else ""
    yield f"{schedule.kind}{over} ({schedule.at})"
    share = f"{100 * schedule.share:.3g} %" if schedule.share else ""
    if schedule.warm_up:
        yield f"warm-up {schedule.warm_up:,} steps" + (f" ({share})" if share else "")
    elif share:
        yield f"warm-up {share} of all steps"
