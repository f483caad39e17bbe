"""Takes the options of a plan from the files that configure a training.

axolotl, LLaMA-Factory, TRL and transformers (YAML or JSON), torchtitan (TOML), accelerate and
DeepSpeed. The keys are those of their documentation and data classes. A key that several of them
have means the same in each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Setting
from ddoctor.forecast import optimizers, zero_files
from ddoctor.forecast.method import Method
from ddoctor.forecast.options import Attention, Lora, PlanRequest, Precision
from ddoctor.forecast.zero import Zero
from ddoctor.launch import files

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ON = ("true", "yes", "on", "auto", "1")
OFF = ("false", "no", "off", "none", "null", "~", "", "0")
MODEL = ("base_model", "model_name_or_path")
COUNTS: Mapping[str, Sequence[str]] = {
    "sequence": (
        *("sequence_len", "cutoff_len", "max_length", "max_seq_length", "block_size"),
        "training.seq_len",
    ),
    "micro_batch": (
        *("micro_batch_size", "per_device_train_batch_size", "train_micro_batch_size_per_gpu"),
        "training.local_batch_size",
    ),
    "global_batch": ("train_batch_size", "training.global_batch_size"),
}
EVALUATES = (
    *("eval_strategy", "evaluation_strategy", "do_eval", "val_size", "val_set_size"),
    "validation.enable",
)
EVAL_BATCH = ("per_device_eval_batch_size", "eval_batch_size", "validation.local_batch_size")
# transformers/training_args.py
USUAL_EVAL_BATCH = 8
EPOCHS = ("num_epochs", "num_train_epochs")
ACCUMULATION = ("gradient_accumulation_steps", "deepspeed_config.gradient_accumulation_steps")
OPTIMIZER = ("optim", "optimizer", "optimizer.name", "optimizer.type")
ATTENTION = ("attn_implementation", "flash_attn", "flash_attention")
ATTENTIONS: Mapping[str, Attention] = {
    **dict.fromkeys(("flash_attention_2", "flash_attention_3", "fa2", "fa3", "true"), "flash"),
    **dict.fromkeys(("eager", "disabled"), "eager"),
    "sdpa": "sdpa",
}
FUSED = (
    *("liger_fused_linear_cross_entropy", "use_liger_kernel", "enable_liger_kernel"),
    "cut_cross_entropy",
)
OF_TORCHTITAN = "compile.enable"
COMPILES = ("torch_compile", OF_TORCHTITAN)
BACKEND = ("dynamo_config.dynamo_backend", "dynamo_backend", "torch_compile_backend")
RECOMPUTES = ("gradient_checkpointing", "fsdp_config.fsdp_activation_checkpointing")
DTYPE = ("torch_dtype", "dtype", "model_init_kwargs.torch_dtype", "model_init_kwargs.dtype")
BF16, FP16 = ("bf16", "bf16.enabled"), ("fp16", "fp16.enabled")
MIXED: Mapping[str, Precision] = {"bf16": "bf16-mixed", "fp16": "fp16-mixed", "no": "fp32"}
RANK = ("lora_r", "lora_rank")
TARGETS = ("lora_target_modules", "lora_target")
# peft/utils/constants.py, for Llama, Mistral, Qwen and most others.
USUAL_TARGETS = "q_proj+v_proj"
USUAL_RANK = 8
# These go with --model, and are left out where another option describes the model.
OF_MODEL = ("model", "attention", "loss", "lora", "quantize", "method", "vllm_share")
METHOD = ("rl", "stage")
PACKING = ("sample_packing", "packing")
VLLM = ("use_vllm", "trl.use_vllm")
VLLM_SHARE = ("vllm_gpu_memory_utilization", "trl.vllm_gpu_memory_utilization")
OF_SAMPLES = ("sequence", "checkpointing", "compile", "eval_batch")
# They take memory, or save some, that no plan knows.
BEYOND = (
    *(*METHOD, *VLLM, *PACKING),
    # torchtitan's converters are float8 and the like.
    *(*COMPILES, "model.converters"),
    *("parallelism.tensor_parallel_degree", "parallelism.pipeline_parallel_degree"),
    *("parallelism.context_parallel_degree", "parallelism.expert_parallel_degree"),
    *("tensor_parallel_size", "context_parallel_size", "sequence_parallel_degree"),
)
USUAL = (*OFF, "1", "-1", "sft", "pt")
"""Values of these that change nothing."""


@dataclass(frozen=True)
class Taken:
    """What files say of a plan."""

    settings: tuple[Setting, ...]
    """The options that they give, where the command line gives none."""
    beyond: tuple[Setting, ...]
    """What they ask for and no plan knows."""
    packed: bool = False
    """Whether samples are packed into rows, and the plan knows their lengths."""
    zero: Zero | None = None
    """What they say of DeepSpeed; None: nothing."""


def completed(wanted: PlanRequest) -> tuple[PlanRequest, Taken]:
    """The options, with those of the files that the command line leaves open.

    Raises:
        DoctorError: a file cannot be read, or has none of these keys.
    """
    values: dict[str, Any] = {}
    settings: list[Setting] = []
    beyond: list[Setting] = []
    accumulated: Setting | None = None
    without: tuple[str, ...] = OF_MODEL if wanted.workload is not None else ()
    if wanted.params is not None:
        without = (*OF_MODEL, *OF_SAMPLES)
    if wanted.parallel.words:
        without = (*without, "eval_batch")
    zero: Zero | None = None
    paths = list(wanted.configs or ())
    for path in paths:
        read = _settings(path)
        if (other := zero_files.named(read, path)) is not None and other not in paths:
            paths.append(other)
        config = _Config(read)
        options = [*config.options()]
        deepspeed = zero_files.read(read) if wanted.engine != "fsdp" else None
        if deepspeed is not None:
            wanted = replace(wanted, engine="deepspeed")
            # A file that only names another one leaves all to it.
            zero = deepspeed.zero if zero is None or zero.strategy is None else zero
            settings += deepspeed.settings
            beyond += deepspeed.beyond
        elif not options:
            raise DoctorError(
                f"{path} has no key of a plan: name the file of axolotl, LLaMA-Factory, TRL, "
                "transformers, torchtitan, accelerate or DeepSpeed that has the model or the batch"
            )
        for option, value, place in options:
            if getattr(wanted, option) in (None, False) and option not in {*values, *without}:
                values[option] = value
                settings.append(_as_option(place, option, value))
        planned = (*config.planned, *(() if "compile" in without else COMPILES))
        beyond += [
            one
            for one in config.every(BEYOND)
            if one.value.lower() not in USUAL and one.name not in planned
        ]
        accumulated = accumulated or config.accumulated
    wanted = replace(wanted, **values)
    if accumulated is not None and wanted.global_batch is None:
        each, gpus = wanted.micro_batch, wanted.gpus
        if each is not None and gpus is not None and gpus.isdigit():
            samples = (accumulated.number or 1) * each * int(gpus)
            wanted = replace(wanted, global_batch=samples)
            settings.append(_as_option(accumulated, "global_batch", samples))
    packing = [one for one in beyond if one.name in PACKING]
    # Only the kernels of flash attention keep the samples of a row apart without a mask.
    if packed := bool(packing) and wanted.lengths is not None and wanted.attention == "flash":
        beyond = [one for one in beyond if one not in packing]
    return wanted, Taken(tuple(settings), tuple(beyond), packed, zero)


def _as_option(place: Setting, option: str, value: object) -> Setting:
    shown = "" if value is True else str(getattr(value, "text", value))
    return msgspec.structs.replace(place, name=f"--{option.replace('_', '-')}", value=shown)


def _settings(path: Path) -> Sequence[Setting]:
    if path.suffix != ".toml":
        return files.settings(path, str(path))
    try:
        told = tomllib.loads(files.text(path, str(path)))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DoctorError(f"{path} is no TOML: {error}") from error
    return [
        Setting(name=f"{table}.{key}", value=_toml(value), file=str(path))
        for table, rows in told.items()
        for key, value in (rows.items() if isinstance(rows, dict) else ())
    ]


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Config:
    """The values of one file, by key."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        self._by_key = {one.name: one for one in settings}
        self._adapter = self._adapts()

    def every(self, keys: Sequence[str]) -> Iterator[Setting]:
        """The values of these keys."""
        return (self._by_key[key] for key in keys if key in self._by_key)

    @property
    def accumulated(self) -> Setting | None:
        """Micro-batches of an optimizer step, where they are several."""
        one = self._first(ACCUMULATION)
        return one if one is not None and (one.number or 0) > 1 else None

    @property
    def planned(self) -> Sequence[str]:
        """The keys beyond the options of a step that this file's plan takes into account."""
        method, share = self._method(), self._vllm_share()
        return (*(METHOD if method is not None else ()), *(VLLM if share is not None else ()))

    def options(self) -> Iterator[tuple[str, Any, Setting]]:
        """Each option that the file decides, its value, and where it is written."""
        names: Mapping[str, Sequence[str]] = {"model": MODEL, "optimizer": OPTIMIZER}
        for option, keys in names.items():
            if (one := self._first(keys)) is not None and one.value.lower() not in (*OFF, *ON):
                with suppress(DoctorError):
                    yield option, _text(option, one.value), one
        for option, keys in COUNTS.items():
            if (one := self._first(keys)) is not None and (one.number or 0) > 0:
                yield option, one.number, one
        if (one := self._first(("num_processes",))) is not None and (one.number or 0) > 0:
            yield "gpus", str(one.number), one
        for option, found in (
            ("epochs", self._epochs()),
            ("attention", self._attention()),
            ("loss", self._loss()),
            ("checkpointing", self._checkpointing()),
            ("compile", self._compiled()),
            ("precision", self._precision()),
            ("lora", self._lora()),
            ("quantize", self._quantized()),
            ("method", self._method()),
            ("vllm_share", self._vllm_share()),
            ("eval_batch", self._eval_batch()),
        ):
            if found is not None:
                yield option, *found

    def _first(self, keys: Sequence[str]) -> Setting | None:
        return next(self.every(keys), None)

    def _on(self, keys: Sequence[str]) -> Setting | None:
        """The first of these keys that is switched on."""
        return next((one for one in self.every(keys) if one.value.lower() in ON), None)

    def _epochs(self) -> tuple[float, Setting] | None:
        one = self._first(EPOCHS)
        with suppress(ValueError):
            return None if one is None or float(one.value) <= 0 else (float(one.value), one)
        return None

    def _attention(self) -> tuple[Attention, Setting] | None:
        one = self._first(ATTENTION)
        kind = ATTENTIONS.get(one.value.lower()) if one is not None else None
        return None if one is None or kind is None else (kind, one)

    def _loss(self) -> tuple[str, Setting] | None:
        if (one := self._on(FUSED)) is not None:
            return "fused", one
        # torchtitan compiles model and loss by default (torchtitan/config/job_config.py).
        one, parts = self._on((OF_TORCHTITAN,)), self._first(("compile.components",))
        compiled = one is not None and (parts is None or "loss" in parts.value)
        return ("compiled", one) if one is not None and compiled else None

    def _checkpointing(self) -> tuple[str, Setting] | None:
        if (mode := self._first(("activation_checkpoint.mode",))) is not None:
            policy = self._first(("activation_checkpoint.selective_ac_option",))
            selective = f"selective:{policy.value}" if policy is not None else "selective"
            kinds = {"full": "every", "none": "none", "selective": selective}
            return (kinds[mode.value], mode) if mode.value in kinds else None
        if (one := self._first(RECOMPUTES)) is not None:
            return ("none" if one.value.lower() in OFF else "every"), one
        # LLaMA-Factory checkpoints unless it is told not to.
        if self._of_llama_factory and self._on(("disable_gradient_checkpointing",)) is None:
            return "every", self._of_llama_factory
        return None

    def _compiled(self) -> tuple[bool, Setting] | None:
        # A backend alone also switches it on (transformers/training_args.py, accelerate).
        backends = (one for one in self.every(BACKEND) if one.value.lower() not in OFF)
        one = self._on(COMPILES) or next(backends, None)
        return None if one is None else (True, one)

    @property
    def _of_llama_factory(self) -> Setting | None:
        return self._first(("finetuning_type", "cutoff_len"))

    @property
    def _of_axolotl(self) -> Setting | None:
        return self._first(("base_model",))

    def _precision(self) -> tuple[Precision, Setting] | None:
        """Weights in bfloat16, or in float32 with autocast.

        axolotl loads the weights in bfloat16. transformers does where a dtype is given. With
        adapters LLaMA-Factory keeps the frozen weights in bfloat16; else it trains in float32.
        """
        mixed = self._first(("mixed_precision",))
        if mixed is not None and mixed.value in MIXED:
            return MIXED[mixed.value], mixed
        dtype, pure = self._first(DTYPE), self._on(("pure_bf16",))
        if dtype is not None and dtype.value in ("bfloat16", "bf16"):
            return "bf16", dtype
        if pure is not None:
            return "bf16", pure
        if (bf16 := self._on(BF16)) is not None:
            whole = self._of_axolotl or (self._of_llama_factory and self._adapter)
            return ("bf16" if whole else "bf16-mixed"), bf16
        fp16 = self._on(FP16)
        return ("fp16-mixed", fp16) if fp16 is not None else None

    def _adapts(self) -> Setting | None:
        """The line that asks for adapters."""
        kind = self._first(("adapter", "finetuning_type"))
        if kind is not None:
            return kind if kind.value in ("lora", "qlora") else None
        return self._on(("use_peft",))

    def _lora(self) -> tuple[Lora, Setting] | None:
        if self._adapter is None:
            return None
        rank, targets = self._first(RANK), self._first(TARGETS)
        width = (rank.number if rank is not None else None) or USUAL_RANK
        every = self._on(("lora_target_linear",)) or (
            targets.value in ("all", Lora.EVERY) if targets is not None else self._of_llama_factory
        )
        names = "+".join(targets.value.split(",")) if targets is not None else USUAL_TARGETS
        dora = ",dora" if self._on(("use_dora", "peft_use_dora")) else ""
        # PEFT keeps adapters in float32 where the weights are in bfloat16.
        precision = self._precision()
        full = ",fp32" if precision is not None and precision[0] == "bf16" else ""
        text = f"r={width}{'' if every else f',targets={names}'}{dora}{full}"
        return Lora(text.replace(" ", "")), self._adapter

    def _method(self) -> tuple[Method, Setting] | None:
        one = self._first(METHOD)
        if one is None or one.value not in ("dpo", "grpo"):
            return None
        # TRL's beta is 0 unless a file sets it, and then it loads no reference.
        weight = self._first(("beta", "trl.beta", "rl_beta"))
        with suppress(ValueError):
            if one.value == "grpo" and (weight is None or float(weight.value) == 0):
                return Method("grpo:beta=0"), one
        return Method(one.value), one

    def _eval_batch(self) -> tuple[int, Setting] | None:
        """Samples of a batch of evaluation; None: it is off, or not larger than a micro-batch."""
        on = next(
            (one for one in self.every(EVALUATES) if one.value.lower() not in (*OFF, "0.0")), None
        )
        method = self._method()
        if on is None or (method is not None and method[0].generates):
            return None
        if (one := self._first(EVAL_BATCH)) is not None and (one.number or 0) > 0:
            return one.number or 0, one
        usual = self._of_axolotl or on.name.startswith("validation")
        return None if usual else (USUAL_EVAL_BATCH, on)

    def _vllm_share(self) -> tuple[float, Setting] | None:
        """The share of a GPU that vLLM takes there, by default 0.3 in TRL; 0: on other GPUs."""
        place, method = self._on(VLLM), self._method()
        if place is None or method is None or not method[0].generates:
            return None
        mode = self._first(("vllm_mode", "trl.vllm_mode"))
        share = self._first(VLLM_SHARE)
        if mode is not None and mode.value == "server":
            return 0.0, mode
        with suppress(ValueError):
            if share is not None and 0 < float(share.value) < 1:
                return float(share.value), share
        return (0.3, mode) if mode is not None and mode.value == "colocate" else None

    def _quantized(self) -> tuple[str, Setting] | None:
        bits = self._on(("load_in_4bit",)) or next(
            (one for one in self.every(("quantization_bit",)) if one.number == 4), None
        )
        qlora = next((one for one in self.every(("adapter",)) if one.value == "qlora"), None)
        if (place := bits or qlora) is None or self._adapter is None:
            return None
        # axolotl and LLaMA-Factory quantize the scales as well, unless they are told not to.
        usual = self._of_axolotl or self._of_llama_factory
        told = self._first(("use_bnb_nested_quant", "double_quantization"))
        twice = told.value.lower() in ON if told is not None else bool(usual)
        return ("nf4-double" if twice else "nf4"), place


def _text(option: str, value: str) -> str:
    # torchtitan and DeepSpeed write them as torch's classes.
    return optimizers.named(value.lower()) if option == "optimizer" else value
