"""The memory of weights, gradients and AdamW's states on each GPU, by strategy.

Bytes for each parameter as in ml-engineering, training/performance, "Anatomy of Model's Memory
Usage", divided among the ranks as in Rajbhandari et al. 2020, figure 1. Activations come on top.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.named_models import TRAINERS, NamedModel, named_models
from ddoctor.analysis.own_models import own_models
from ddoctor.analysis.script_plan import strategy
from ddoctor.evidence.launch import Setting
from ddoctor.evidence.plan import MemoryParts
from ddoctor.evidence.script import Script

# The classes of torch, apex and DeepSpeed, and transformers' `optim`, that keep two states.
ADAM = re.compile(r"(?:\w+\.)*(?:Fused|DeepSpeedCPU|N|R)?AdamW?|adamw_(?:torch|hf|apex)\w*", re.I)
LESS = re.compile(r"lora|peft|quant|load_in_|galore|8bit|4bit|freeze|finetuning_type", re.I)
"""Words of options by which a part of the weights is trained, or they take less."""
OFF = ("", "false", "none", "null", "no", "0", "full")
OFFLOADS = re.compile(r"offload", re.I)
DDP, FSDP = "DDP", "FSDP"
ALL = ("optimizer", "gradients", "parameters")
SHARDED = {DDP: (), "ZeRO-1": ALL[:1], "ZeRO-2": ALL[:2], "ZeRO-3": ALL, FSDP: ALL}
"""The parts of a model that the ranks divide among them."""
OF_OTHERS = ("arg.fsdp", "arg.deepspeed", "arg.fsdp_config")
"""Arguments of transformers' Trainer, which else trains with DDP."""
DIVIDED = frozenset(("tensor parallelism", "pipeline parallelism", "Megatron"))
"""Frameworks by which each rank has a part of the layers."""


@dataclass(frozen=True, kw_only=True)
class TrainedStates:
    """What a training with AdamW keeps of a model, in bytes for each parameter."""

    model: NamedModel
    weights: int
    gradients: int
    optimizer: int
    ranks: int
    strategy: str
    """A key of ``SHARDED``; empty: another one, or unknown."""
    offloads: Setting | None = None
    """What keeps the states, and the optimizer's step, in host memory; None: nothing does."""

    @property
    def shards_all(self) -> bool:
        """Whether each rank keeps a part of the weights only."""
        return SHARDED.get(self.strategy) == ALL

    def under(self, strategy: str) -> MemoryParts:
        """What each GPU keeps under a strategy."""
        count = self.model.billions * 1e9
        sharded = SHARDED[strategy]
        sizes = (("parameters", self.weights), ("gradients", self.gradients))
        return MemoryParts(
            **{
                name: round(count * size / (self.ranks if name in sharded else 1))
                for name, size in (*sizes, ("optimizer", self.optimizer))
            }
        )


def trained_states(plan: LaunchPlan, script: Script | None) -> Iterator[TrainedStates]:
    """Yield those of each model, where all of its weights are surely trained, with AdamW."""
    options = [one for one in plan.launch.settings if one.name.startswith(("arg.", "--"))]
    in_part = any(LESS.search(one.name) and one.value.lower() not in OFF for one in options)
    freezes = script is not None and script.trains_less is not None
    ranks = plan.ranks
    if ranks is None or plan.degrees or in_part or freezes or not _by_adam(plan, script):
        return
    for model in chain(named_models(plan, script), own_models(plan, script)):
        weights, gradients, states = (2, 2, 4) if model.halves else (4, 4, 8)
        mixed = plan.precision is not None and plan.precision.value in ("bf16", "fp16")
        if mixed and plan.by_deepspeed:
            # deepspeed/runtime/bf16_optimizer.py: weights in fp32 are among the states.
            weights, gradients, states = 2, 2, 12
        elif mixed and plan.strategy.startswith("FSDP"):
            # accelerate/accelerator.py, _prepare_fsdp2: FSDP gets weights in fp32.
            weights, gradients, states = 4, 4, 8
        yield TrainedStates(
            model=model,
            weights=weights,
            gradients=gradients,
            optimizer=states,
            ranks=ranks,
            strategy=_strategy(plan, script),
            offloads=next(filter(_on_the_host, _offloads(plan)), None),
        )


def _by_adam(plan: LaunchPlan, script: Script | None) -> bool:
    named = plan.get("deepspeed.optimizer.type", "arg.optim")
    if named is not None:
        return ADAM.fullmatch(named.value) is not None
    if plan.launch.script in TRAINERS or plan.by_trainer:
        # The default of transformers' TrainingArguments, adamw_torch_fused.
        return True
    if script is None or not any(loop.kind == "training" for loop in script.loops):
        return False
    return any(ADAM.fullmatch(one.name) for one in script.calls)


def _strategy(plan: LaunchPlan, script: Script | None) -> str:
    """FSDP counts as if it sharded all: the memory is a lower bound."""
    if _offloads(plan):
        return ""
    frameworks = {one.framework for one in script.imports} if script is not None else set[str]()
    if DIVIDED & frameworks:
        return ""
    told = plan.strategy or (strategy(script) if script is not None else "")
    if told.startswith("FSDP"):
        return FSDP
    if not told and "Trainer" in frameworks and plan.get(*OF_OTHERS) is None:
        return DDP if plan.launch.launcher in ("torchrun", "torch.distributed.launch") else ""
    stage = told.removeprefix("DeepSpeed ").replace("ZeRO-0", DDP)
    return stage if stage in SHARDED else ""


def _offloads(plan: LaunchPlan) -> Sequence[Setting]:
    """The settings that keep something in host memory."""
    settings = plan.launch.settings
    return [one for one in settings if OFFLOADS.search(one.name) and one.value.lower() not in OFF]


def _on_the_host(one: Setting) -> bool:
    """Whether it keeps the optimizer's states there."""
    return one.value.lower() == "cpu" or (one.on and one.name.endswith("offload_params"))
