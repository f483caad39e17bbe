"""Makes a plan from the options of ``ddoctor plan``."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from ddoctor import units
from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import Checkpointing, Plan
from ddoctor.forecast import devices, from_run, measured, planning
from ddoctor.forecast.closed_form import USUAL_LAYERS, Model, Optimizer, Precision
from ddoctor.forecast.devices import PlannedGpu
from ddoctor.forecast.forecaster import Forecaster
from ddoctor.forecast.measured import MeasuredStep
from ddoctor.forecast.options import PlanRequest
from ddoctor.forecast.planning import PlannedWork


def plan(wanted: PlanRequest) -> Plan:
    """Return the plan for these options.

    Raises:
        DoctorError: an option is missing or wrong, or two exclude each other.
    """
    named = sum(one is not None for one in (wanted.params, wanted.model, wanted.workload))
    if named > 1 or (not named and not wanted.measured):
        raise DoctorError(
            "describe the model in one way: --model CONFIG, --workload package.module:factory, "
            "--params 4.4B, or --measured BUNDLE of a run"
        )
    device, gpus = _device(wanted), _gpus(wanted.gpus)
    step = _measured(wanted, device)
    if step is not None and wanted.micro_batch is None:
        wanted = replace(wanted, micro_batch=step.micro_batch)
    work = _work(wanted, step)
    precision, optimizer = _kinds(wanted)
    if step is not None:
        precision, optimizer = precision or step.precision, optimizer or step.states
    if wanted.model is not None or wanted.workload is not None:
        usual = precision or "bf16-mixed", optimizer or "adamw"
        model, forecast = _read(wanted, *usual)
    else:
        model, forecast = _in_numbers(wanted, precision, optimizer), None
    if step is not None:
        step.check(model)
    return planning.plan(model, device, gpus, work, forecast)


def _read(
    wanted: PlanRequest, precision: Precision, optimizer: Optimizer
) -> tuple[Model, Forecaster | None]:
    """Return the model and its forecaster; None: closed form, as it cannot run without data."""
    for option in ("trainable", "layers"):
        if getattr(wanted, option) is not None:
            raise _known(option)
    # These import torch.
    from ddoctor.forecast.model.blueprint import from_config
    from ddoctor.forecast.model.forecasting import Forecast, Undecided
    from ddoctor.forecast.model.reading import read
    from ddoctor.forecast.model.workload import from_factory

    blueprint = (
        from_config(wanted.model)
        if wanted.model is not None
        else from_factory(wanted.workload or "", wanted.sequence)
    )
    found = read(blueprint, wanted.sequence)
    forecast = Forecast(
        blueprint=blueprint,
        precision=precision,
        optimizer=optimizer,
        samples=wanted.micro_batch or 1,
        length=found.length,
        checkpointing=_checkpointing(wanted.checkpointing),
    )
    model = Model(
        name=blueprint.name,
        parameters=found.parameters,
        trainable=found.trainable,
        precision=precision,
        optimizer=optimizer,
        layers=found.layers,
        blocks=found.blocks,
    )
    try:
        model = replace(model, flops=forecast.flops)
    except Undecided as error:
        if wanted.checkpointing != "none":
            raise DoctorError(
                f"{error}, so only closed form can plan it: leave out --checkpointing, and pass "
                "--activations"
            ) from None
        return replace(model, activations=_activations(wanted), coarse=str(error)), None
    if wanted.activations is not None:
        raise _known("activations")
    return model, forecast


def _known(option: str) -> DoctorError:
    return DoctorError(f"--{option} goes with --params: --model and --workload define it")


def _activations(wanted: PlanRequest) -> int:
    """Return the bytes of --activations; 0: not given."""
    said = wanted.activations
    return 0 if said is None else units.size("--activations", said)


def _checkpointing(said: str) -> Checkpointing:
    found: list[Checkpointing] = [one for one in get_args(Checkpointing) if one == said]
    if not found:
        raise _none_of("--checkpointing", said, get_args(Checkpointing))
    return found[0]


def _in_numbers(
    wanted: PlanRequest, precision: Precision | None, optimizer: Optimizer | None
) -> Model:
    if wanted.sequence is not None:
        raise DoctorError("--sequence goes with --model: with --params give --activations")
    if wanted.checkpointing != "none":
        raise DoctorError("--checkpointing goes with --model: with --params give --activations")
    activations = _activations(wanted)
    if wanted.params is None:
        if wanted.trainable is not None:
            raise DoctorError("--trainable goes with --params: the measured run defines it")
        found = from_run.read(wanted.measured or (), wanted.micro_batch, precision, optimizer)
        return replace(
            found,
            activations=activations or found.activations,
            layers=wanted.layers or found.layers,
        )
    parameters = units.count("--params", wanted.params or "")
    trainable = (
        parameters if wanted.trainable is None else units.count("--trainable", wanted.trainable)
    )
    if trainable > parameters:
        raise DoctorError(f"--trainable {wanted.trainable}: the model has only {wanted.params}")
    return Model(
        parameters=parameters,
        trainable=trainable,
        precision=precision or "bf16-mixed",
        optimizer=optimizer or "adamw",
        activations=activations,
        layers=wanted.layers or USUAL_LAYERS,
    )


def _kinds(wanted: PlanRequest) -> tuple[Precision | None, Optimizer | None]:
    """Return precision and optimizer; None: not given."""
    precision: list[Precision] = [one for one in get_args(Precision) if one == wanted.precision]
    optimizer: list[Optimizer] = [one for one in get_args(Optimizer) if one == wanted.optimizer]
    if wanted.precision is not None and not precision:
        raise _none_of("--precision", wanted.precision, get_args(Precision))
    if wanted.optimizer is not None and not optimizer:
        raise _none_of("--optimizer", wanted.optimizer, get_args(Optimizer))
    return precision[0] if precision else None, optimizer[0] if optimizer else None


def _device(wanted: PlanRequest) -> PlannedGpu:
    if wanted.gpu is None and wanted.device_memory is None and wanted.measured:
        return measured.device(wanted.measured)
    if (wanted.gpu is None) == (wanted.device_memory is None):
        raise DoctorError("choose the GPU in one way: --gpu h100-80 or --device-memory 24GiB")
    if wanted.gpu is not None:
        return devices.find(wanted.gpu)
    size = wanted.device_memory or ""
    return PlannedGpu(name=f"a GPU with {size}", memory=units.size("--device-memory", size))


def _gpus(text: str) -> tuple[int, ...]:
    return tuple(units.product("--gpus", one) for one in text.split(","))


def _measured(wanted: PlanRequest, device: PlannedGpu) -> MeasuredStep | None:
    if wanted.measured and wanted.step is not None:
        raise DoctorError("set the step time in one way: --step or --measured BUNDLE")
    if wanted.loading is not None and wanted.step is None:
        raise DoctorError("--loading goes with --step: it adds to that time")
    if not wanted.measured:
        return None
    return measured.read(wanted.measured, device, wanted.micro_batch)


def _work(wanted: PlanRequest, step: MeasuredStep | None) -> PlannedWork:
    if wanted.micro_batch is None and (wanted.samples or wanted.global_batch):
        raise DoctorError("--samples and --global-batch need --micro-batch")
    loading = wanted.loading or 0.0
    if wanted.epochs <= 0 or loading < 0 or (wanted.step is not None and wanted.step <= 0):
        raise DoctorError("--epochs and --step must be above 0, --loading must not be negative")
    in_numbers = wanted.model is None and wanted.workload is None
    return PlannedWork(
        # Without --micro-batch, the model is read with one sample.
        micro_batch=wanted.micro_batch or (None if in_numbers else 1),
        global_batch=wanted.global_batch,
        samples=None if wanted.samples is None else units.product("--samples", wanted.samples),
        epochs=wanted.epochs,
        host_memory=(
            None if wanted.host_memory is None else units.size("--host-memory", wanted.host_memory)
        ),
        step_seconds=None if wanted.step is None else wanted.step + loading,
        measured=step,
    )


def _none_of(option: str, said: str, known: tuple[str, ...]) -> DoctorError:
    return DoctorError(f"{option} {said}: use one of {', '.join(known)}")
