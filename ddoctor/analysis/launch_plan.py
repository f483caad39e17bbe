"""What a launch would train: ranks, strategy, precision, batch, rate and steps."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod, sqrt

from msgspec.structs import replace as with_fields

from ddoctor.analysis import deepspeed_batch
from ddoctor.analysis.derived import Derived
from ddoctor.analysis.granted_gpus import gpus_per_host
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.launch import Launch, Setting

ALL = ("all", "auto", "gpu", "-1")
"""Values that stand for all visible GPUs."""

OF_RANKS = (
    *("NCCL_", "UCX_", "FI_", "TORCH_", "GLOO_", "CUDA_", "HF_", "PYTORCH_", "OMP_", "WANDB_"),
)
"""Beginnings of the names of variables that ranks read."""

RANK_STARTERS = ("torchrun", "torch.distributed.launch")
EMPTY = ("", "none", "null", "None")
OF_EVALUATION = frozenset(
    ("val", "valid", "validation", "eval", "evaluation", "test", "predict", "inference", "hydra")
)
"""Sections of a configuration that say nothing of the training."""

# What frameworks and scripts call these settings; the first that is given counts.
MICRO_BATCH = (
    *("arg.per_device_train_batch_size", "arg.per_gpu_train_batch_size"),
    *("deepspeed.train_micro_batch_size_per_gpu", "arg.micro_batch_size", "arg.train_batch_size"),
    *("arg.batch_size", "arg.bs", "arg.training.batch_size", "arg.data.batch_size"),
)
ACCUMULATION = (
    *("accumulation", "arg.gradient_accumulation_steps", "arg.accumulate_grad_batches"),
    *("deepspeed.gradient_accumulation_steps", "arg.grad_accum_steps", "arg.accumulation_steps"),
)
OWN_ACCUMULATION = re.compile(
    r"(?:num_|n_)?(?:grad(?:ient)?s?_)?accum(?:ulat\w{1,8})?(?:_\w{1,20})?"
    r"|grad(?:ient)?s?_acc(?:_\w{1,20})?",
    re.IGNORECASE,
)
"""What scripts call it in their own configurations."""
ACCUMULATES = "env.ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
MEGATRON = "accelerate.megatron_lm_config.megatron_lm_"
MICRO_BATCHES = ("accelerate.megatron_lm_num_micro_batches", f"{MEGATRON}num_micro_batches")
"""Those of a batch of Megatron-LM, which accumulates over them."""
# Megatron-LM, torchtitan, accelerate, transformers.
DEGREES = {
    "TP": (
        *(
            "arg.tensor_model_parallel_size",
            "arg.parallelism.tensor_parallel_degree",
            "arg.tp_size",
        ),
        *("accelerate.parallelism_config.parallelism_config_tp_size", "arg.tensor_parallel_size"),
        *("accelerate.megatron_lm_tp_degree", f"{MEGATRON}tp_degree"),
    ),
    "PP": (
        *("arg.pipeline_model_parallel_size", "arg.parallelism.pipeline_parallel_degree"),
        *("arg.pipeline_parallel_size", "accelerate.megatron_lm_pp_degree", f"{MEGATRON}pp_degree"),
    ),
    "CP": (
        *("arg.context_parallel_size", "arg.parallelism.context_parallel_degree"),
        "accelerate.parallelism_config.parallelism_config_cp_size",
    ),
}
"""How many ranks share a model, by tensor, pipeline and context parallelism."""
RATE = (
    "arg.learning_rate",
    "arg.lr",
    "arg.optimizer.lr",
    "arg.optim.lr",
    "arg.policy.optimizer_lr",
    "deepspeed.optimizer.params.lr",
)
STEPS = (
    "arg.max_steps",
    "arg.max_train_steps",
    "arg.steps",
    "arg.max_iters",
    "arg.num_steps",
    "arg.train_steps",
)
DROPS = "arg.dataloader_drop_last"
PRECISION = ("precision", "env.ACCELERATE_MIXED_PRECISION", "lightning.precision")
"""Without a launcher that says it, `Accelerator` reads the variable, and Lightning its argument."""
EPOCHS = ("arg.num_train_epochs", "arg.epochs", "arg.num_epochs", "arg.max_epochs")
WARM_UP = (
    "arg.warmup_steps",
    "arg.num_warmup_steps",
    "arg.lr_warmup_steps",
    "arg.warmup_iters",
    "arg.scheduler.num_warmup_steps",
)
SAVE = (
    "arg.save_steps",
    "arg.save_freq",
    "arg.checkpointing_steps",
    "arg.save_every",
    "arg.save_interval",
)
SAVE_THE_LAST = ("lerobot-train", "trl", "llamafactory-cli")
"""Programs whose training saves its last step, too."""
DECAY = (
    "arg.scheduler_decay_steps",
    "arg.policy.scheduler_decay_steps",
    "arg.lr_decay_iters",
    "arg.scheduler.num_decay_steps",
)
EVALUATE = ("arg.eval_freq", "arg.eval_steps", "arg.eval_interval", "arg.eval_every")
SPLITS = ("arg.accelerator_config.split_batches",)
"""How transformers' TrainingArguments give it to accelerate."""
UNKNOWN = "?"
OF_ARGUMENTS = re.compile(r"(?P<of>[a-z_]\w*)(?:\.[a-z_]\w*)*\.(?P<key>[a-z_]\w*)")
"""Text such as ``args.split``."""
HALVINGS = 3
"""How often a micro-batch is halved and doubled for other choices."""
WORKERS = ("arg.dataloader_num_workers", "arg.num_workers", "arg.workers")


@dataclass(frozen=True, kw_only=True)
class LaunchPlan(Derived):
    """A launch, and what follows from its numbers."""

    launch: Launch
    visible: int | None = None
    """Number of GPUs of this machine; None: not known."""

    @classmethod
    def derive(cls, launch: Launch, gpus: Gpus | None) -> LaunchPlan:
        """The plan of this launch on this machine."""
        return cls(launch=launch, visible=len(gpus.gpus) if gpus is not None else None)

    def get(self, *names: str) -> Setting | None:
        """The value that wins, of the first of these names that is set to something."""
        found = (self.launch.get(name) for name in names)
        given = (one for one in found if one is not None and one.value not in EMPTY)
        return next(given, None) or self._nested(names)

    def _nested(self, names: tuple[str, ...]) -> Setting | None:
        """One of the script's arguments within sections of its configuration.

        None: there is none, or several differ.
        """
        plain = {name[4:] for name in names if name.startswith("arg.") and name.count(".") == 1}
        winners: dict[str, Setting] = {}
        for one in self.launch.settings:
            *sections, last = one.name.split(".")
            inner = len(sections) > 1 and sections[0] == "arg" and last in plain
            if inner and one.value not in EMPTY and not OF_EVALUATION.intersection(sections):
                winners.setdefault(one.name, one)
        values = {one.value for one in winners.values()}
        return next(iter(winners.values())) if len(values) == 1 else None

    @property
    def variables(self) -> tuple[Setting, ...]:
        """The variables that the line or its scripts set for the ranks, named ``env.NAME``."""
        found = {one.name: one for one in reversed(self.launch.settings)}
        names = dict.fromkeys(one.name for one in self.launch.settings)
        wanted = tuple(f"env.{one}" for one in OF_RANKS)
        return tuple(found[one] for one in names if one.startswith(wanted))

    @property
    def devices(self) -> tuple[str, ...] | None:
        """The devices that are made visible; None: all, or only the shell of a rank knows."""
        found = self.get("env.CUDA_VISIBLE_DEVICES", "devices")
        if found is None or found.value == "all" or "$" in found.value:
            return None
        return tuple(filter(None, (one.strip() for one in found.value.split(","))))

    @property
    def gpus_per_host(self) -> Setting | None:
        """GPUs that a scheduler grants on each host; None: it does not say so."""
        return gpus_per_host(self.launch)

    @property
    def on_all_gpus(self) -> bool:
        """Whether each host gets as many ranks as it has GPUs."""
        found = self.launch.get("ranks-per-host", "ranks")
        return found is not None and found.value in ALL

    @property
    def each(self) -> int | None:
        """Ranks on each host; None: not known."""
        if self.on_all_gpus and self.devices is not None:
            return len(self.devices)
        if self.on_all_gpus:
            granted = self.gpus_per_host
            return granted.number if granted is not None else self.visible
        if (own := self.launch.ranks_per_host) is not None:
            return own
        ranks, hosts = self.launch.ranks, self.launch.hosts
        return ranks // hosts if ranks is not None and hosts else None

    @property
    def ranks(self) -> int | None:
        """Ranks in all; None: not known."""
        if self.launch.ranks is not None:
            return self.launch.ranks
        hosts, each = self.launch.hosts, self.each
        return hosts * each if hosts is not None and each is not None else None

    @property
    def strategy(self) -> str:
        """Return how the work is divided, as far as launcher and files say it; empty: unknown."""
        found = self.launch.get("trainer.strategy", "strategy", "lightning.strategy")
        stage = self.get("zero-stage", "deepspeed.zero_optimization.stage", "deepspeed.zero_stage")
        if stage is not None:
            return f"DeepSpeed ZeRO-{stage.value}"
        names = {"ddp": "DDP", "deepspeed": "DeepSpeed", "megatron": "Megatron-LM"}
        names |= {"tpu": "data parallel by torch_xla"}
        if found is not None and found.value == "fsdp":
            return f"FSDP{self._fsdp_version}"
        if found is not None:
            return names.get(found.value, "")
        if self.launch.on("accelerate.use_fsdp"):
            return f"FSDP{self._fsdp_version}"
        prepares = self.launch.launcher == "accelerate" or (
            self.launch.launcher in RANK_STARTERS and self.by_trainer
        )
        return "DDP" if prepares and (self.ranks or 0) > 1 else ""

    @property
    def _fsdp_version(self) -> str:
        version = self.get("fsdp.version", "accelerate.fsdp_version")
        # The default of transformers' Trainer differs between its versions.
        unknown = "" if self.launch.get("trainer.strategy") is not None else "1"
        return version.value if version is not None else unknown

    @property
    def degrees(self) -> Mapping[str, Setting]:
        """The degrees of parallelism above 1, by their usual letters."""
        found = {letters: self.get(*names) for letters, names in DEGREES.items()}
        return {
            letters: one
            for letters, one in found.items()
            if one is not None and (one.number or 1) > 1
        }

    @property
    def precision(self) -> Setting | None:
        """The setting of the precision; None: not known."""
        own = self.of_accelerator("mixed_precision")
        if own is not None:
            # It beats the launch (accelerate/accelerator.py).
            return own if own.value != UNKNOWN else None
        found = self.get(*PRECISION)
        # TrainingArguments give theirs to accelerate, too (transformers/training_args.py).
        if found is not None and not self.by_trainer:
            return found
        on = (name for name in ("bf16", "fp16") if self.launch.on(f"arg.{name}"))
        name = next(on, "")
        own = self.launch.get(f"arg.{name}") if name else None
        if own is None:
            # DeepSpeed's file counts as it is, where nothing else says it.
            on = (name for name in ("bf16", "fp16") if self.launch.on(f"deepspeed.{name}.enabled"))
            name = next(on, "")
            own = self.launch.get(f"deepspeed.{name}.enabled") if name and not found else None
        return with_fields(own, name="precision", value=name) if own is not None else found

    def of_accelerator(self, name: str) -> Setting | None:
        """What the script gives to ``Accelerator``; None: nothing.

        Its value is ``UNKNOWN`` where only the running script knows it.
        """
        every = self.launch.all(f"accelerator.{name}")
        if not every:
            return None
        values = {self._evaluated(one.value) for one in every}
        value = values.pop() if len(values) == 1 else UNKNOWN
        return with_fields(every[0], value=value) if value not in EMPTY else None

    def _evaluated(self, text: str) -> str:
        """The value of a constant, or of an argument of the script; one not given is None."""
        if match := OF_ARGUMENTS.fullmatch(text):
            found = self.get(f"arg.{match['key']}")
            without = "None" if match["of"] in ("args", "opt", "opts", "options") else UNKNOWN
            return found.value if found is not None else without
        try:
            return str(literal_eval(text))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return UNKNOWN

    @property
    def split(self) -> Setting | None:
        """What lets accelerate split a loader's batch between the ranks; None: it does not."""
        found = self.of_accelerator("split_batches") or self.get(*SPLITS)
        return found if found is not None and (found.on or found.value == UNKNOWN) else None

    @property
    def loader_batch(self) -> Setting | None:
        """Samples of a batch as the script's loader makes it."""
        return deepspeed_batch.micro_batch(self.launch, self.ranks) or self.get(*MICRO_BATCH)

    @property
    def micro_batch(self) -> Setting | None:
        """Samples of one rank in one forward pass."""
        found, split = self.loader_batch, self.split
        if found is None or split is None or found.name.startswith("deepspeed."):
            return found
        size, ranks = found.number, self.ranks
        if split.value == UNKNOWN or size is None or not ranks or size % ranks:
            return None
        return with_fields(found, value=str(size // ranks))

    @property
    def accumulation(self) -> int:
        """Forward passes for each optimizer step."""
        return self.accumulated.number or 1 if self.accumulated is not None else 1

    @property
    def accumulated(self) -> Setting | None:
        """What sets that number; None: nothing, so that it is 1."""
        found = self.get(*ACCUMULATION)
        if self.strategy == "Megatron-LM":
            # accelerate/utils/megatron_lm.py: of one step.
            found = self.get(*MICRO_BATCHES)
        elif not self.by_deepspeed:
            own = self.of_accelerator("gradient_accumulation_steps")
            counts = own is not None and own.number is not None
            # accelerate/utils/launch.py passes its own number on to DeepSpeed alone.
            found = own if counts else self.get(*ACCUMULATION[1:])
            if counts and (variable := self.launch.get(ACCUMULATES)) and variable.number:
                # accelerate/accelerator.py: it beats the argument.
                found = variable
            found = found or self._own_accumulation or self.launch.get("script.accumulation")
        return found or deepspeed_batch.accumulation(self.launch, self.ranks)

    @property
    def _own_accumulation(self) -> Setting | None:
        """An argument that is named like it; None: there is none, or several differ."""
        found = {
            one.name: one
            for one in reversed(self.launch.settings)
            if one.name.startswith("arg.")
            and OWN_ACCUMULATION.fullmatch(one.name.rpartition(".")[2])
            and not OF_EVALUATION.intersection(one.name.split("."))
            and one.number
        }
        values = {one.value for one in found.values()}
        return next(iter(found.values())) if len(values) == 1 else None

    @property
    def by_deepspeed(self) -> bool:
        """Whether DeepSpeed trains, as far as launcher and files say it."""
        told = self.strategy.startswith("DeepSpeed") or self.launch.launcher == "deepspeed"
        return told or self.launch.on("accelerate.use_deepspeed")

    @property
    def batch(self) -> int | None:
        """Samples of all ranks for each optimizer step; None: not known."""
        micro, ranks = self.micro_batch, self.ranks
        if micro is None or micro.number is None or ranks is None:
            return None
        # Ranks that share a model have the same samples.
        shared = prod(one.number or 1 for one in self.degrees.values())
        return micro.number * (ranks // shared) * self.accumulation

    @property
    def rate(self) -> Setting | None:
        """The learning rate; None: it is not known, or optimizers have several."""
        own = self.launch.all("optimizer.lr")
        if not own or self.get("deepspeed.optimizer.params.lr") is not None:
            return self.get(*RATE)
        return own[0] if len({one.value for one in own}) == 1 and own[0].value else None

    @property
    def steps(self) -> Setting | None:
        """Optimizer steps in all, where a number is given."""
        found = self.get(*STEPS)
        return found if found is not None and (found.number or 0) > 0 else None

    @property
    def saves_every(self) -> Setting | None:
        """Steps between two checkpoints; None: not known, or transformers saves otherwise."""
        found, by = self.get(*SAVE), self.launch.get("arg.save_strategy")
        by_steps = by is None or by.value in ("steps", "?", "")
        return found if by_steps or found is None or found.name != SAVE[0] else None

    @property
    def by_trainer(self) -> bool:
        """Whether a library's own loop trains, which saves its last step, too.

        Source: transformers/trainer_callback.py, DefaultFlowCallback; lerobot_train.py, train.
        """
        by_program = self.launch.script.rpartition("/")[2] in SAVE_THE_LAST
        if by_program or self.launch.get("trainer") is not None:
            return True
        classes = tuple(f"the default of {name}" for name in SAVE_THE_LAST)
        return any(one.origin in classes for one in self.launch.settings)

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps that use each sample once; None: not known."""
        samples = self.launch.number("samples")
        if not samples or not self.batch:
            return None
        return ceil((samples - (self.dropped or 0)) / self.batch)

    @property
    def dropped(self) -> int | None:
        """Samples of an epoch that fill no batch and are dropped; None: not known.

        Each rank gets as many samples, some of them twice (DistributedSampler).
        """
        samples = self.launch.number("samples")
        micro = self.micro_batch.number if self.micro_batch is not None else None
        if not samples or not micro or not self.batch or not self.launch.on(DROPS):
            return None
        models = self.batch // micro // self.accumulation
        return samples - min(samples, ceil(samples / models) // micro * micro * models)

    @property
    def same_batch(self) -> tuple[tuple[int, int], ...]:
        """Other micro-batches, halved and doubled, with the accumulation that keeps the batch."""
        micro = self.micro_batch.number if self.micro_batch is not None else None
        each = (micro or 0) * self.accumulation
        sizes = ((micro or 0) * 2**power // 2**HALVINGS for power in range(2 * HALVINGS + 1))
        return tuple(
            (size, each // size)
            for size in dict.fromkeys(sizes)
            if size and size != micro and each % size == 0
        )


def scaled(rate: Setting | None, times: float) -> tuple[float, float] | None:
    """The rate for a batch that is ``times`` as large: by the linear and the square-root rule.

    Goyal et al. 2017 for SGD; Malladi et al. 2022 for Adam and its kin. None: it is no number.
    """
    try:
        value = float(rate.value) if rate is not None else None
    except ValueError:
        return None
    return (value * times, value * sqrt(times)) if value is not None else None
