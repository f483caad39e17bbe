"""Arguments that transformers' Trainer refuses, or with which it trains otherwise than meant."""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.launch_plan import WARM_UP, LaunchPlan
from ddoctor.analysis.mistake import Mistake
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.models import Confidence, Fix, Severity

# transformers/integrations/deepspeed.py, trainer_config_process: each with the argument that must
# say the same, and the one that must not be on with it.
OF_TRAINER = {
    "deepspeed.fp16.enabled": ("arg.fp16", "arg.bf16"),
    "deepspeed.bf16.enabled": ("arg.bf16", "arg.fp16"),
    "deepspeed.train_micro_batch_size_per_gpu": ("arg.per_device_train_batch_size", ""),
    "deepspeed.gradient_accumulation_steps": ("arg.gradient_accumulation_steps", ""),
    "deepspeed.optimizer.params.lr": ("arg.learning_rate", ""),
}


def of_trainer(plan: LaunchPlan) -> Iterator[Mistake]:
    """All of them."""
    yield from _trainer_and_deepspeed(plan.launch)
    yield from _whole_batch(plan)
    if plan.by_trainer:
        yield from _two_precisions(plan.launch)
        yield from _best_between_saves(plan.launch)
        yield from _warms_up_only(plan)


def _two_precisions(launch: Launch) -> Iterator[Mistake]:
    """Source: transformers/training_args.py, _validate_args."""
    first, second = launch.get("arg.fp16"), launch.get("arg.bf16")
    if first is not None and second is not None and first.on and second.on:
        yield Mistake(
            because=f"fp16 ({first.at}) and bf16 ({second.at}) are both on: transformers refuses "
            "that",
            at=first,
            fix=Fix(summary="keep one of them: bf16 since Ampere", paste="--bf16"),
            confidence=Confidence.LIKELY,
        )


def _best_between_saves(launch: Launch) -> Iterator[Mistake]:
    """The best checkpoint is known only where each save follows an evaluation.

    Source: transformers/training_args.py, _validate_args.
    """
    best, saves, evaluates = (
        launch.get(f"arg.{name}") for name in ("load_best_model_at_end", "save_steps", "eval_steps")
    )
    ways = [launch.get(f"arg.{name}") for name in ("eval_strategy", "evaluation_strategy")]
    by_steps = any(one is not None and one.value == "steps" for one in ways)
    kept = launch.get("arg.save_strategy")
    if kept is not None and kept.value != "steps":
        return
    if best is None or not best.on or not by_steps or saves is None or evaluates is None:
        return
    if saves.number and evaluates.number and saves.number % evaluates.number:
        multiple = -(-saves.number // evaluates.number) * evaluates.number
        yield Mistake(
            because=f"load_best_model_at_end is on ({best.at}), and save_steps {saves.value} "
            f"({saves.at}) is no multiple of eval_steps {evaluates.value} ({evaluates.at}): "
            "transformers refuses that",
            at=saves,
            fix=Fix(summary="save where it evaluates", paste=f"--save_steps {multiple}"),
            confidence=Confidence.LIKELY,
        )


def _warms_up_only(plan: LaunchPlan) -> Iterator[Mistake]:
    """The rate rises to its value over more steps than the training has."""
    steps, rise = plan.steps, plan.get(*WARM_UP)
    if steps is None or rise is None or not steps.number or not rise.number:
        return
    if rise.number >= steps.number:
        yield Mistake(
            because=f"the rate rises over {rise.number:,} steps ({rise.at}), and the training has "
            f"{steps.number:,} ({steps.at}): it never reaches its value",
            at=rise,
            fix=Fix(
                summary="warm up over a part of the training",
                paste=f"--{rise.name.removeprefix('arg.')} {max(1, steps.number // 20)}",
            ),
            confidence=Confidence.LIKELY,
            # A trial of some steps is cut short on purpose.
            severity=Severity.NOTE,
        )


def _trainer_and_deepspeed(launch: Launch) -> Iterator[Mistake]:
    """The Trainer refuses a file of DeepSpeed that says something else than its arguments."""
    for name, (same, unlike) in OF_TRAINER.items():
        own, other, contrary = launch.get(name), launch.get(same), launch.get(unlike)
        file = launch.get("arg.deepspeed")
        # With a loop of its own, a script is given `--deepspeed` alone.
        if file is None or not file.value.endswith(".json") or own is None or own.value == "auto":
            continue
        if contrary is not None:
            other = contrary if own.on and contrary.on else None
        elif other is not None and ("default" in other.origin or _equal(own, other)):
            other = None
        if other is not None:
            yield Mistake(
                because=f"{name.removeprefix('deepspeed.')} is {own.value} ({own.at}), but "
                f"{other.name[4:]} is {other.value} ({other.at}): transformers refuses that",
                at=own,
                fix=Fix(
                    summary="let transformers put in its own value",
                    paste=f'"{name.rpartition(".")[2]}": "auto"',
                    language="text",
                ),
                confidence=Confidence.LIKELY,
            )
            return


def _whole_batch(plan: LaunchPlan) -> Iterator[Mistake]:
    """The Trainer refuses another batch of all ranks in DeepSpeed's file than it has.

    Source: transformers/integrations/deepspeed.py, trainer_config_process, ``train_batch_size``.
    """
    launch = plan.launch
    file, own, micro, steps = (
        launch.get(name)
        for name in (
            *("arg.deepspeed", "deepspeed.train_batch_size"),
            *("arg.per_device_train_batch_size", "arg.gradient_accumulation_steps"),
        )
    )
    if not plan.by_trainer or file is None or own is None or micro is None or not plan.ranks:
        return
    times = steps.number if steps is not None else 1
    if own.number and micro.number and times and file.value.endswith(".json"):
        whole = plan.ranks * micro.number * times
        if whole != own.number:
            yield Mistake(
                because=f"train_batch_size is {own.value} ({own.at}), and {plan.ranks} ranks with "
                f"{micro.value} samples each ({micro.at}) and {times} micro-batches make {whole}: "
                "transformers refuses that",
                at=own,
                fix=Fix(
                    summary="let transformers put in its own value",
                    paste='"train_batch_size": "auto"',
                    language="text",
                ),
                confidence=Confidence.LIKELY,
            )


def _equal(own: Setting, other: Setting) -> bool:
    if own.value.lower() in ("true", "false"):
        return own.on == other.on
    return _number(own.value) == _number(other.value)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
