"""Makes a plan from the options of ``ddoctor plan``."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from ddoctor import units
from ddoctor.errors import DoctorError
from ddoctor.evidence.limits import LARGEST
from ddoctor.evidence.plan import Plan, SampleLengths
from ddoctor.evidence.software import ALLOCATOR, EXPANDS
from ddoctor.forecast import advice, config_files, devices, model_parallel, planning
from ddoctor.forecast import lengths as sample_lengths
from ddoctor.forecast.closed_form import USUAL_LAYERS, Model
from ddoctor.forecast.companions import companions
from ddoctor.forecast.devices import PlannedGpu
from ddoctor.forecast.from_run import RunBundle
from ddoctor.forecast.measured import MeasuredStep
from ddoctor.forecast.method import SFT
from ddoctor.forecast.options import PlanRequest, Precision
from ddoctor.forecast.zero import Zero, check_optimizer

if TYPE_CHECKING:
    from ddoctor.forecast.model.forecasting import Forecast
    from ddoctor.forecast.model.pipeline import PipelineForecast

Kind = TypeVar("Kind", Model, MeasuredStep)

USUAL_GPUS = "1,2,4,8"
DEFINED = "goes with --params: --model and --workload define it"


def plan(wanted: PlanRequest) -> Plan:
    """Return the plan for these options.

    Raises:
        DoctorError: an option is missing or wrong, or two exclude each other.
    """
    own = wanted
    wanted, taken = config_files.completed(wanted)
    if wanted.advise:
        wanted, taken = advice.opened(own, wanted, taken)
    named = sum(one is not None for one in (wanted.params, wanted.model, wanted.workload))
    if named > 1 or (not named and not wanted.measured):
        raise DoctorError(
            "describe the model in one way: --model CONFIG, --workload package.module:factory, "
            "--params 4.4B, or --measured BUNDLE of a run"
        )
    _check(wanted)
    run = RunBundle(wanted.measured) if wanted.measured else None
    device = _device(wanted, run)
    gpus = tuple(units.product("--gpus", one) for one in (wanted.gpus or USUAL_GPUS).split(","))
    if wanted.gpus is None:
        gpus = tuple(one * wanted.parallel.gpus * wanted.parallel.expert for one in gpus)
    step, forecast, part = None, None, None
    lengths = _lengths(wanted, packed=taken.packed)
    if lengths is not None:
        wanted = sample_lengths.applied(wanted, lengths)
    precision, optimizer = wanted.precision, wanted.optimizer
    if run is not None:
        step = run.step(device, wanted.micro_batch)
        wanted = replace(wanted, micro_batch=wanted.micro_batch or step.micro_batch)
        precision, optimizer = precision or step.precision, optimizer or step.states
    searched = wanted
    if wanted.micro_batch is None and not wanted.advise and (wanted.samples or wanted.global_batch):
        raise DoctorError("--samples and --global-batch need --micro-batch")
    usual = precision or "bf16-mixed", optimizer or "adamw"
    zero = taken.zero or Zero() if wanted.engine == "deepspeed" else None
    if wanted.model is not None or wanted.workload is not None:
        wanted = replace(wanted, micro_batch=wanted.micro_batch or 1)
        model, part, forecast = _read(wanted, *usual, device, lengths, zero)
    elif run is None or wanted.params is not None:
        model = _in_numbers(wanted, *usual)
        part = model_parallel.in_numbers(model, wanted.parallel, layers=wanted.layers)
    elif wanted.trainable is not None:
        raise DoctorError("--trainable goes with --params: the measured run defines it")
    else:
        model = run.model(wanted)
    if zero is not None:
        check_optimizer(model.optimizer)
        model, step = _with_masters(model), step and _with_masters(step)
        part = part and _with_masters(part)
    if step is not None:
        step.check(model)
    if wanted.advise:
        # No pipeline: a search excludes model parallelism.
        planned = advice.plan(model, device, gpus, searched, cast("Forecast | None", forecast))
    else:
        planned = planning.plan(model, device, gpus, wanted, step, forecast, part, zero)
    method = (wanted.method or SFT).text
    return msgspec.structs.replace(
        planned,
        taken=taken.settings,
        beyond=taken.beyond,
        method=method,
        lengths=lengths,
        cache=0 if forecast is None else forecast.companions.cache,
    )


def _with_masters(one: Kind) -> Kind:
    """Return it with the master weights in fp32 that DeepSpeed keeps of weights in bf16."""
    return replace(one, precision="bf16-mixed") if one.precision == "bf16" else one


def _check(wanted: PlanRequest) -> None:
    """Check which options go together."""
    if wanted.measured and wanted.step is not None:
        raise DoctorError("set the step time in one way: --step or --measured BUNDLE")
    if wanted.loading is not None and wanted.step is None:
        raise DoctorError("--loading goes with --step: it adds to that time")
    step = 1.0 if wanted.step is None else wanted.step
    epochs = 1.0 if wanted.epochs is None else wanted.epochs
    positive = 0 < epochs <= LARGEST and 0 < step <= LARGEST
    if not (positive and 0 <= (wanted.loading or 0.0) <= LARGEST):
        raise DoctorError(
            "--epochs and --step must be above 0, --loading must not be negative, "
            f"and none above {LARGEST:g}"
        )
    in_numbers = wanted.model is None and wanted.workload is None
    if wanted.compile and in_numbers:
        raise DoctorError("--compile goes with --model or --workload: it runs their blocks")
    if wanted.eval_batch is not None and in_numbers:
        raise DoctorError("--eval-batch goes with --model or --workload: it runs them")
    if wanted.attention is not None and wanted.model is None:
        raise DoctorError("--attention goes with --model: other models define it")
    if wanted.loss not in (None, "plain") and wanted.model is None:
        raise DoctorError("--loss goes with --model: other models define it")
    if wanted.lengths is not None and wanted.model is None:
        raise DoctorError("--lengths goes with --model")
    if wanted.images is not None and wanted.model is None:
        raise DoctorError("--images goes with --model: other models define it")
    method = wanted.method or SFT
    if not method.plain and wanted.images is not None:
        raise DoctorError(f"--images does not go with --method {method.text}")
    if not method.plain and wanted.model is None:
        raise DoctorError(f"--method {method.text} goes with --model")
    if not method.plain and wanted.loss not in (None, "plain"):
        raise DoctorError(f"--method {method.text} defines its own loss: pass --loss plain")
    if wanted.eval_batch is not None and method.generates:
        raise DoctorError("--eval-batch does not go with --method grpo: it generates as well")
    if wanted.vllm_share is not None and not method.generates:
        raise DoctorError("--vllm-share goes with --method grpo, which generates completions")
    if (wanted.lora or wanted.quantize) is not None and wanted.model is None:
        raise DoctorError("--lora and --quantize go with --model: other models define it")
    if wanted.quantize is not None and wanted.lora is None:
        raise DoctorError("--quantize goes with --lora: weights in 4 bits cannot be trained")
    if wanted.lora is not None and wanted.lora.full and wanted.precision != "bf16":
        raise DoctorError("--lora with fp32 goes with --precision bf16: otherwise all have that")
    if wanted.attention == "flash" and wanted.precision == "fp32":
        raise DoctorError("--attention flash: its kernels take bf16 and fp16 only, not fp32")
    if wanted.expert_load is not None and not 1 <= wanted.expert_load <= wanted.parallel.expert > 1:
        raise DoctorError(
            f"--expert-load {wanted.expert_load:g}: it goes with --ep, and is at most that number"
        )
    if wanted.parallel.words:
        _check_parallel(wanted)
    without = ("sequence", "checkpointing") if in_numbers else ("trainable", "layers")
    for option in without:
        if getattr(wanted, option) not in (None, "none"):
            raise DoctorError(
                f"--{option} goes with --model: with --params give --activations"
                if in_numbers
                else f"--{option} {DEFINED}"
            )


def _check_parallel(wanted: PlanRequest) -> None:
    """Check which options go with model parallelism."""
    if wanted.measured or wanted.workload is not None:
        raise DoctorError("--tp, --pp, --cp and --ep go with --model or --params")
    if wanted.parallel.pipeline > 1 and None in (wanted.global_batch, wanted.micro_batch):
        raise DoctorError(
            "--pp needs --global-batch and --micro-batch: they give the number of micro-batches "
            "that fill the pipeline"
        )
    others = {
        "--lora": wanted.lora is not None,
        "--loss": wanted.loss not in (None, "plain"),
        "--method": not (wanted.method or SFT).plain,
        "--lengths": wanted.lengths is not None,
        "--images": wanted.images is not None,
        "--eval-batch": wanted.eval_batch is not None,
        "--engine deepspeed": wanted.engine == "deepspeed",
    }
    for option, given in others.items():
        if given:
            raise DoctorError(f"{option} does not go with --tp, --pp, --cp and --ep")
    if wanted.write is not None:
        raise DoctorError(
            "--write does not go with --tp, --pp, --cp and --ep: accelerate has no sequence "
            "parallelism and no pipeline for training"
        )


def _device(wanted: PlanRequest, run: RunBundle | None) -> PlannedGpu:
    size = wanted.device_memory
    if wanted.gpu is None and size is None and run is not None:
        return run.device()
    if wanted.gpu is not None and size is None:
        return devices.find(wanted.gpu)
    if wanted.gpu is None and size is not None:
        return PlannedGpu(name=f"a GPU with {size}", memory=units.size("--device-memory", size))
    raise DoctorError("choose the GPU in one way: --gpu h100-80 or --device-memory 24GiB")


def _lengths(wanted: PlanRequest, *, packed: bool) -> SampleLengths | None:
    if wanted.lengths is None:
        return None
    rows = (wanted.method or SFT).rows * (wanted.micro_batch or 1)
    return sample_lengths.read(wanted.lengths).of_batches(wanted.sequence, rows, packed=packed)


def _read(
    wanted: PlanRequest,
    precision: Precision,
    optimizer: str,
    device: PlannedGpu,
    lengths: SampleLengths | None,
    zero: Zero | None,
) -> tuple[Model, Model, Forecast | PipelineForecast | None]:
    """Return the model, one GPU's part of it, and its forecast.

    None: closed form, as it cannot run without data.
    """
    # These import torch.
    from ddoctor.forecast.model import parts
    from ddoctor.forecast.model.blueprint import from_config, from_factory
    from ddoctor.forecast.model.forecasting import Forecast, Undecided
    from ddoctor.forecast.model.zero import ZeroForecast

    method = wanted.method or SFT
    blueprint = (
        from_config(
            wanted.model,
            wanted.attention,
            wanted.loss or "plain",
            lora=wanted.lora,
            quantized=wanted.quantize,
            method=method,
            images=wanted.images,
        )
        if wanted.model is not None
        else from_factory(wanted.workload or "", wanted.sequence)
    )
    if lengths is not None:
        sample_lengths.check(lengths, blueprint.name, blueprint.longest)
    model = blueprint.read(precision, optimizer)
    model = replace(model, forwards=2 if method.compares else 1)
    length = blueprint.length(wanted.sequence)
    share = wanted.vllm_share
    kind = Forecast if zero is None else partial(ZeroForecast, buffers=zero.buffers)
    forecast = kind(
        blueprint=blueprint,
        precision="bf16" if zero is not None and precision != "fp32" else precision,
        optimizer=optimizer,
        samples=wanted.micro_batch or 1,
        length=length,
        checkpointing=wanted.checkpointing or "none",
        compiled=wanted.compile,
        expandable=any(EXPANDS in os.environ.get(name, "") for name in ALLOCATOR),
        evaluated=wanted.eval_batch or 0,
        companions=companions(
            method,
            model,
            adapted=wanted.lora is not None,
            cached=blueprint.cached,
            length=length,
            vllm=None if share is None else round(share * device.memory),
        ),
    )
    try:
        if wanted.parallel.words:
            return model, *parts.divided(blueprint, forecast, wanted.parallel)
        padded = forecast
        if lengths is not None and not lengths.packed:
            padded = replace(forecast, length=max(1, round(lengths.padded)))
        model = replace(model, work=padded.work)
    except Undecided as error:
        if wanted.parallel.words:
            raise DoctorError(
                f"{error}, so only closed form can plan it: pass --params, or leave out --tp, "
                "--pp, --cp and --ep"
            ) from None
        recomputes = wanted.checkpointing not in (None, "none")
        if recomputes or wanted.compile or not method.plain:
            without = "--checkpointing" if recomputes else "--compile"
            without = without if method.plain else "--method"
            raise DoctorError(
                f"{error}, so only closed form can plan it: leave out {without}, and pass "
                "--activations"
            ) from None
        model = replace(model, activations=wanted.activations or 0, coarse=str(error))
        return model, model, None
    if wanted.activations is not None:
        raise DoctorError(f"--activations {DEFINED}")
    return model, model, forecast


def _in_numbers(wanted: PlanRequest, precision: Precision, optimizer: str) -> Model:
    parameters = units.count("--params", wanted.params or "")
    trainable = (
        parameters if wanted.trainable is None else units.count("--trainable", wanted.trainable)
    )
    if trainable > parameters:
        raise DoctorError(f"--trainable {wanted.trainable}: the model has only {wanted.params}")
    return Model(
        parameters=parameters,
        trainable=trainable,
        precision=precision,
        optimizer=optimizer,
        activations=wanted.activations or 0,
        layers=wanted.layers or USUAL_LAYERS,
    )
