"""The options of ``ddoctor plan`` on the model, the GPUs, the training and its launch files."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import typer

from ddoctor import units
from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import CHECKPOINTING, ModelParallel
from ddoctor.forecast import optimizers
from ddoctor.forecast.images import Images
from ddoctor.forecast.method import Method

Precision = Literal["fp32", "bf16-mixed", "fp16-mixed", "bf16"]
Attention = Literal["eager", "sdpa", "flash"]
Engine = Literal["fsdp", "deepspeed"]
Quantized = Literal["nf4", "nf4-double"]


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters, written as ``r=16,targets=q_proj+v_proj,dora,fp32``."""

    text: str

    FORM: ClassVar[re.Pattern[str]] = re.compile(
        r"r=(?P<rank>[1-9]\d{0,3})(?:,targets=(?P<targets>[\w.+-]{1,400}))?(?P<dora>,dora)?"
        r"(?P<full>,fp32)?"
    )
    EVERY: ClassVar[str] = "all-linear"

    def __post_init__(self) -> None:
        """Check the form."""
        if not self.FORM.fullmatch(self.text):
            raise DoctorError(
                f"--lora {self.text}: use r=16, with ,targets=q_proj+v_proj ,dora or ,fp32"
            )

    @property
    def rank(self) -> int:
        """Width of the narrow layers."""
        return int(self._part("rank"))

    @property
    def dora(self) -> bool:
        """Whether magnitudes are trained apart."""
        return bool(self._part("dora"))

    @property
    def full(self) -> bool:
        """Whether they stay in fp32 where the weights are in bf16, as in PEFT, with autocast."""
        return bool(self._part("full"))

    def covers(self, layer: str) -> bool:
        """Whether a layer of this name gets an adapter; without ``targets``, each does."""
        targets = self._part("targets")
        return targets in ("", self.EVERY) or any(
            f".{layer}".endswith(f".{one}") for one in targets.split("+")
        )

    def _part(self, name: str) -> str:
        found = self.FORM.fullmatch(self.text)
        return (found[name] if found else "") or ""


def _one_of(kinds: Any, option: str, text: str) -> str:
    if text not in get_args(kinds):
        raise DoctorError(f"{option} {text}: use one of {', '.join(get_args(kinds))}")
    return text


def _recomputed(text: str) -> str:
    if not re.fullmatch(CHECKPOINTING, text):
        raise DoctorError(
            f"--checkpointing {text}: use none, every, selective, selective:op or selective:N"
        )
    return text


def _share(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) < 1:
            return float(text)
    raise DoctorError(f"--vllm-share {text}: give a share of the GPU, such as 0.3")


def _loss(text: str) -> str:
    if not re.fullmatch(r"plain|fused|compiled|chunked:[1-9]\d{0,3}", text):
        raise DoctorError(f"--loss {text}: use plain, fused, compiled or chunked:N")
    return text


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """The options of ``ddoctor plan``, without those of its report."""

    configs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            help="Configuration of the training, of axolotl, LLaMA-Factory, TRL, torchtitan, "
            "accelerate or DeepSpeed: for what no option says; repeatable.",
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            metavar="CONFIG",
            help="Model: config.json of transformers or diffusers, its folder, or a Hub name.",
        ),
    ] = None
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Instead of --model: a Python factory, MODULE:FUNCTION.",
        ),
    ] = None
    params: Annotated[
        str | None,
        typer.Option(metavar="N", help="Instead of --model: number of parameters, e.g. 4.4B."),
    ] = None
    trainable: Annotated[
        str | None,
        typer.Option(metavar="N", help="Trainable parameters of --params; default: all."),
    ] = None
    precision: Annotated[
        Precision | None,
        typer.Option(
            metavar="NAME",
            parser=partial(_one_of, Precision, "--precision"),
            help="fp32, bf16-mixed, fp16-mixed or bf16; default: bf16-mixed.",
        ),
    ] = None
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            parser=optimizers.named,
            help="adamw, adamw-fp32 (states in fp32), adamw-8bit, sgd, adafactor, muon, soap, any "
            "of torch.optim, or transformers' optim=; default: adamw.",
        ),
    ] = None
    activations: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE",
            parser=partial(units.size, "--activations"),
            help="Activations per micro-batch and GPU, e.g. 10GB.",
        ),
    ] = None
    layers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Layers that FSDP wraps; default: 32.", min=1),
    ] = None
    sequence: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Tokens per sample; default for --model: 2048, or a diffusion model's usual text.",
            min=1,
        ),
    ] = None
    lengths: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Lengths of --model's samples in tokens, one a line or as JSON: for padding; "
            "--sequence cuts longer ones.",
        ),
    ] = None
    images: Annotated[
        Images | None,
        typer.Option(
            metavar="NxHxW",
            parser=Images,
            help="Images in each sample of --model: number, height and width, e.g. 4x448x448; "
            "for a diffusion model its image.",
        ),
    ] = None
    checkpointing: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            parser=_recomputed,
            help="Activation checkpointing of --model's blocks: none, every, selective (keeps "
            "matrix products), selective:op (every second one) or selective:N (each Nth block); "
            "default: none.",
        ),
    ] = None
    compile: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="torch.compile each block of --model or --workload by itself, as torchtitan and "
            "accelerate's regional compilation do.",
        ),
    ] = False
    attention: Annotated[
        Attention | None,
        typer.Option(
            metavar="NAME",
            parser=partial(_one_of, Attention, "--attention"),
            help="Attention of --model: eager, sdpa or flash; default: as transformers chooses.",
        ),
    ] = None
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            parser=_loss,
            help="Loss of --model: plain, fused (Liger), compiled or chunked:N (torchtune); "
            "default: plain.",
        ),
    ] = None
    lora: Annotated[
        Lora | None,
        typer.Option(
            metavar="r=N,...",
            parser=Lora,
            help="Adapters on --model, frozen: r=16, with ,targets=q_proj+v_proj ,dora or ,fp32.",
        ),
    ] = None
    quantize: Annotated[
        Quantized | None,
        typer.Option(
            metavar="NAME",
            parser=partial(_one_of, Quantized, "--quantize"),
            help="Weights of --model in 4 bits, with --lora: nf4 or nf4-double.",
        ),
    ] = None
    method: Annotated[
        Method | None,
        typer.Option(
            metavar="NAME",
            parser=Method,
            help="Method for --model: sft, dpo, grpo, or grpo:beta=0 (no reference model); "
            "default: sft.",
        ),
    ] = None
    vllm_share: Annotated[
        float | None,
        typer.Option(
            metavar="F",
            parser=_share,
            help="Share of each GPU that vLLM takes with --method grpo, e.g. 0.3; 0: other GPUs "
            "generate.",
        ),
    ] = None
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="GPU model, e.g. h100-80 or rtx-4090.")
    ] = None
    device_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Instead of --gpu: memory per GPU, e.g. 24GiB."),
    ] = None
    host_memory: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE",
            parser=partial(units.size, "--host-memory"),
            help="Memory of each host with 8 GPUs, e.g. 1TiB.",
        ),
    ] = None
    engine: Annotated[
        Engine | None,
        typer.Option(
            metavar="NAME",
            parser=partial(_one_of, Engine, "--engine"),
            help="Shards the model: fsdp, or deepspeed (ZeRO); default: fsdp.",
        ),
    ] = None
    gpus: Annotated[
        str | None,
        typer.Option(metavar="N,...", help="Numbers of GPUs to compare; default: 1,2,4,8."),
    ] = None
    tp: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tensor and sequence parallelism: its GPUs.", min=1),
    ] = None
    pp: Annotated[
        int | None, typer.Option(metavar="N", help="Pipeline parallelism (1F1B): its GPUs.", min=1)
    ] = None
    cp: Annotated[
        int | None, typer.Option(metavar="N", help="Context parallelism: its GPUs.", min=1)
    ] = None
    ep: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Expert parallelism: data-parallel GPUs that share experts.", min=1
        ),
    ] = None
    expert_load: Annotated[
        float | None,
        typer.Option(
            metavar="F",
            help="Tokens of the GPU whose experts get most, as many times as with even routing, "
            "e.g. 1.5; default: 1.",
            min=1.0,
        ),
    ] = None
    micro_batch: Annotated[
        int | None, typer.Option(metavar="N", help="Samples per GPU and micro-batch.", min=1)
    ] = None
    global_batch: Annotated[
        int | None,
        typer.Option(metavar="N", help="Samples per optimizer step on all GPUs.", min=1),
    ] = None
    eval_batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Samples per GPU and batch of --model's or --workload's evaluation, which may "
            "take more memory than training.",
            min=1,
        ),
    ] = None
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            parser=partial(units.product, "--samples"),
            help="Samples per epoch, e.g. 45000 or 50x30x30.",
        ),
    ] = None
    epochs: Annotated[
        float | None, typer.Option(metavar="N", help="Number of epochs; default: 1.")
    ] = None
    step: Annotated[float | None, typer.Option(metavar="S", help="Measured seconds per step.")] = (
        None
    )
    loading: Annotated[
        float | None,
        typer.Option(metavar="S", help="Seconds per step that --step waits for data."),
    ] = None
    measured: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="BUNDLE",
            help="Bundle of a run, memory sweep or probe: its measured step, model, GPU and "
            "link speeds; repeatable.",
        ),
    ] = None
    advise: Annotated[
        bool,
        typer.Option(
            "--advise",
            help="Search micro-batch, accumulation, checkpointing and strategy of --model for the "
            "highest throughput that fits.",
        ),
    ] = False
    write: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write launch files for accelerate and torchrun."),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Let --write replace existing launch files.")
    ] = False

    @property
    def parallel(self) -> ModelParallel:
        """The sizes of model parallelism."""
        return ModelParallel(
            tensor=self.tp or 1,
            pipeline=self.pp or 1,
            context=self.cp or 1,
            expert=self.ep or 1,
            expert_load=self.expert_load or 1.0,
        )

    @property
    def step_seconds(self) -> float | None:
        """Seconds per step by --step, the wait for data included; None: not given."""
        return None if self.step is None else self.step + (self.loading or 0.0)
