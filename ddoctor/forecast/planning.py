"""Strategies × numbers of GPUs: the memory of each, whether it fits, and the recommended one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import (
    GPUS_PER_HOST,
    NO_PARALLELISM,
    TITLES,
    Fit,
    ModelParallel,
    Plan,
    PlanRow,
    Schedule,
    StepTime,
    Strategy,
)
from ddoctor.forecast import timing
from ddoctor.forecast.closed_form import COMPUTING, WEIGHT, ClosedForm, ForecastRow, Model
from ddoctor.forecast.devices import PlannedGpu
from ddoctor.forecast.host_peaks import host_peaks
from ddoctor.forecast.measured import MeasuredStep
from ddoctor.forecast.optimizers import OPTIMIZERS
from ddoctor.forecast.options import PlanRequest
from ddoctor.forecast.zero import ON_CPU, ON_NVME, STAGES, Zero
from ddoctor.forecast.zero_forecast import ZeroClosedForm

if TYPE_CHECKING:
    from ddoctor.forecast.model.forecasting import Forecast
    from ddoctor.forecast.model.pipeline import PipelineForecast

GIB = 2**30
WHOLE = ("one-gpu", "one-copy", "ddp", "zero-1")
"""Strategies with all weights and gradients of its part of the model on each GPU."""
OFFLOADED: Strategy = "fsdp-offload"


def plan(
    model: Model,
    device: PlannedGpu,
    gpus: Sequence[int],
    work: PlanRequest,
    measured: MeasuredStep | None = None,
    forecast: Forecast | PipelineForecast | None = None,
    part: Model | None = None,
    zero: Zero | None = None,
    only: ForecastRow | None = None,
) -> Plan:
    """Return the plan by a forecast on fake tensors; None: by closed form.

    ``part``: what model parallelism leaves of the model on each GPU; None: all. ``zero``: with
    DeepSpeed instead of DDP and FSDP. ``only``: the row that a search has chosen; None: all
    strategies.

    Raises:
        DoctorError: the global batch is a multiple of no number of GPUs × micro-batch, or the
            model cannot be forecast.
    """
    part = part or model
    own = ClosedForm(part) if zero is None else ZeroClosedForm(part, zero.buffers)
    memory = forecast or own
    gpus = _multiples(gpus, work.parallel)
    rows = tuple(_rows(part, memory, device, gpus, work, measured, zero, only))
    if not rows:
        raise DoctorError(
            f"a global batch of {work.global_batch} is not a multiple of {work.micro_batch} "
            f"samples on {_ranks(gpus, work.parallel)}: change --global-batch or --micro-batch"
        )
    asked = zero.strategy if zero is not None else None
    best = _choose([row for row in rows if row.strategy == asked]) or _choose(rows)
    shown = best or _least(rows)
    way = _way(shown)
    # Rows without CPU offload, and how to make them fit.
    bare = _least(rows) if shown.offloads else shown
    weights = model.parameters * WEIGHT[model.precision]
    half = model.parameters * COMPUTING[model.precision]
    return Plan(
        model=_told(model),
        precision=model.precision,
        optimizer=model.optimizer,
        device=device.name,
        device_memory=device.memory,
        checkpointing=memory.checkpointing,
        way=memory.way,
        coarse=model.coarse,
        host_memory=work.host_memory,
        doubt=memory.doubt,
        activations_known=bool(model.activations) or memory.way != "closed form",
        rows=rows,
        chosen=None if best is None else rows.index(best),
        reason=_reason(rows, best, device, asked),
        blocks=model.blocks,
        sequence=memory.sequence,
        micro_batch=work.micro_batch,
        eval_batch=work.eval_batch,
        # A search has compared other micro-batches, and steps without checkpointing.
        largest_micro_batch=(
            forecast.most_samples(way, device.memory) if forecast and not only else None
        ),
        without_checkpointing=(
            forecast.without_checkpointing(way) if forecast and best and not only else None
        ),
        expandable=forecast.expandable if forecast else False,
        with_expandable=(
            forecast.with_expandable(way) if forecast and best and best.fit == "tight" else None
        ),
        gains=memory.gains(_way(bare)) if bare.fit != "fits" else {},
        measured="" if measured is None else measured.words,
        links="" if work.step_seconds else timing.links(part, device, rows, measured),
        with_tf32=None if best is None else timing.with_tf32(part, device, way, best.step),
        # torchao converts plain linear layers; adapters and 4-bit weights are others.
        with_float8=(
            timing.with_float8(part, device, way, best.step)
            if best is not None and work.lora is None and zero is None
            else None
        ),
        without_compile=_without_compile(part, forecast, device, work, way),
        schedule=(
            None if best is None else schedule(work, best.copies, best.accumulation, best.step)
        ),
        host_peaks=None if work.quantize else host_peaks(model, shown),
        checkpoint=round(weights),
        checkpoint_bf16=round(half) if half < weights else None,
        zero=None if zero is None else zero.buffers,
    )


def accumulated(work: PlanRequest, gpus: int) -> int:
    """Return micro-batches per optimizer step on this number of GPUs; 0: not a whole number."""
    if work.global_batch is None or work.micro_batch is None:
        return 1
    copies = gpus // work.parallel.gpus
    turns, rest = divmod(work.global_batch, work.micro_batch * copies)
    return 0 if rest else turns


def _multiples(gpus: Sequence[int], parallel: ModelParallel) -> Sequence[int]:
    """Return the numbers of GPUs that make whole copies, and copies that share all experts.

    Raises:
        DoctorError: there is none.
    """
    each = parallel.gpus * parallel.expert
    found = [number for number in gpus if number % each == 0]
    if not found:
        raise DoctorError(
            f"{parallel.words} needs a multiple of {each} GPUs, and --gpus is "
            f"{','.join(map(str, gpus))}: pass --gpus {each}"
        )
    return found


def _ranks(gpus: Sequence[int], parallel: ModelParallel) -> str:
    copies = " or ".join(str(number // parallel.gpus) for number in gpus)
    return f"{copies} copies of the model" if parallel.gpus > 1 else f"{copies} GPUs"


def schedule(
    work: PlanRequest, copies: int, accumulation: int, step: StepTime | None = None
) -> Schedule | None:
    """Return number and time of all steps, with this step time, on data-parallel copies."""
    if work.samples is None or work.micro_batch is None:
        return None
    batch = work.micro_batch * copies * accumulation
    each = math.ceil(work.samples / batch)
    epochs = 1.0 if work.epochs is None else work.epochs
    steps = math.ceil(each * epochs)
    seconds = work.step_seconds if step is None else step.seconds
    return Schedule(
        samples=work.samples,
        epochs=epochs,
        global_batch=batch,
        steps_per_epoch=each,
        steps=steps,
        seconds=None if seconds is None else steps * seconds,
        source=None if step is None else step.source,
    )


def _rows(
    model: Model,
    forecast: ClosedForm | Forecast | PipelineForecast,
    device: PlannedGpu,
    gpus: Sequence[int],
    work: PlanRequest,
    measured: MeasuredStep | None,
    zero: Zero | None,
    only: ForecastRow | None,
) -> Iterator[PlanRow]:
    row = partial(_row, model, forecast, device, work, measured)
    if only is not None:
        yield row(only)
        return
    for number in sorted(set(gpus)):
        if accumulation := accumulated(work, number):
            ways = [
                ForecastRow(
                    strategy=strategy,
                    gpus=number,
                    accumulation=accumulation,
                    parallel=work.parallel,
                )
                for strategy in strategies(number, work.parallel, zero)
            ]
            found = [row(way) for way in ways]
            yield from found
            for others in _slower(zero) if OPTIMIZERS[model.optimizer].on_cpu else ():
                if any(one.fit in ("fits", "tight") for one in found):
                    break
                listed = [one.strategy for one in found]
                new = [one for one in others if one not in listed]
                more = [row(replace(ways[-1], strategy=strategy)) for strategy in new]
                found += more
                yield from more


def _row(
    model: Model,
    forecast: ClosedForm | Forecast | PipelineForecast,
    device: PlannedGpu,
    work: PlanRequest,
    measured: MeasuredStep | None,
    way: ForecastRow,
) -> PlanRow:
    parts, host = forecast.parts(way), forecast.host(way)
    # The allocator first frees its unused memory, which costs time.
    fit: Fit = "tight" if parts.used <= device.memory else "too-much"
    if forecast.doubt * parts.total <= device.memory:
        fit = "fits"
    kept = host * min(way.gpus, GPUS_PER_HOST)
    if fit != "too-much" and work.host_memory is not None and kept > work.host_memory:
        fit = "host-too-small"
    return PlanRow(
        strategy=way.strategy,
        gpus=way.gpus,
        parts=parts,
        host=host,
        nvme=forecast.nvme(way),
        fit=fit,
        accumulation=way.accumulation,
        moment=forecast.moment(way),
        step=None if work.step_seconds else timing.step(model, device, way, measured),
        parallel=way.parallel,
    )


def _without_compile(
    model: Model,
    forecast: Forecast | PipelineForecast | None,
    device: PlannedGpu,
    work: PlanRequest,
    way: ForecastRow,
) -> PlanRow | None:
    """Return a row without torch.compile; None: it is without. A measured step is with it."""
    eager = forecast.eager if forecast is not None else None
    if eager is None:
        return None
    # Padded batches are shorter than those of the memory.
    operators = None if work.measured or work.lengths else eager.work
    return _row(replace(model, work=operators), eager, device, work, None, way)


def _way(row: PlanRow) -> ForecastRow:
    return ForecastRow(
        strategy=row.strategy,
        gpus=row.gpus,
        accumulation=row.accumulation,
        parallel=row.parallel,
    )


def strategies(
    gpus: int, parallel: ModelParallel = NO_PARALLELISM, zero: Zero | None = None
) -> tuple[Strategy, ...]:
    """Return what can be compared on this number of GPUs, all without CPU offload."""
    if zero is not None:
        # One GPU shares nothing with others, so that the stages differ in their buffers only.
        stages = STAGES if gpus > 1 else STAGES[:1]
        if zero.strategy is None or zero.strategy in stages:
            return stages
        return (*stages, zero.strategy)
    if gpus == 1:
        return ("one-gpu",)
    if gpus == parallel.tensor * parallel.pipeline:
        return ("one-copy",)
    within = 1 < GPUS_PER_HOST // parallel.tensor < gpus // (parallel.tensor * parallel.pipeline)
    # Experts over several hosts are no copies within one.
    alone = parallel.expert == 1
    hybrid: tuple[Strategy, ...] = ("fsdp-hybrid",) if within and alone else ()
    return ("ddp", "fsdp-gradients", "fsdp", *hybrid)


def _slower(zero: Zero | None) -> tuple[tuple[Strategy, ...], ...]:
    """Return the strategies to add, one group after another, as long as nothing fits."""
    return ((OFFLOADED,),) if zero is None else (ON_CPU, (ON_NVME,))


def _choose(rows: Sequence[PlanRow]) -> PlanRow | None:
    """Return the recommended row; None: nothing fits.

    All GPUs, if each can hold the whole model: they then exchange gradients only. Else as few GPUs
    as can hold it together. Else as few as can hold it with the host's memory, which is slow.
    """
    kinds = ((fit, offloaded) for offloaded in (False, True) for fit in ("fits", "tight"))
    for fit, offloaded in kinds:
        good = [row for row in rows if row.fit == fit and row.offloads == offloaded]
        whole = [row for row in good if row.strategy in WHOLE]
        if whole:
            return whole[-1] if fit == "fits" else _smallest(good)
        if good and offloaded and fit == "fits":
            # They come in the order of what they move.
            return good[0]
        if good:
            # Of the sharded strategies, the one with most free memory: the forecast is coarse.
            return _smallest(row for row in good if row.gpus == good[0].gpus)
    return None


def _least(rows: Sequence[PlanRow]) -> PlanRow:
    """Return the row that needs least GPU memory, without CPU offload."""
    return _smallest(row for row in rows if not row.offloads)


def _smallest(rows: Iterable[PlanRow]) -> PlanRow:
    return min(rows, key=lambda row: row.parts.total)


def _reason(
    rows: Sequence[PlanRow], best: PlanRow | None, device: PlannedGpu, asked: Strategy | None
) -> str:
    if best is None:
        least = _smallest(rows)
        return (
            f"nothing fits: the smallest needs {_gib(least.parts.total)} on each of {least.gpus} "
            f"GPUs, and {device.name} has {_gib(device.memory)}"
        )
    room = f"{_gib(device.memory - best.parts.total)} of {_gib(device.memory)} stay free"
    if best.strategy == asked:
        return f"as configured: {room}{_beside(best)}"
    other = f"{TITLES[asked]}, as configured, does not fit; " if asked is not None else ""
    if best.offloads:
        return (
            f"{other}nothing fits without CPU offload: the smallest needs "
            f"{_gib(_least(rows).parts.total)}, and {device.name} has {_gib(device.memory)}"
            f"{_beside(best)}"
        )
    if best.strategy == "zero-1" and best.gpus > 1:
        return f"{other}each GPU holds all weights and gradients: {room}"
    if best.strategy in WHOLE:
        unneeded = "; sharding is unnecessary" if best.gpus > 1 else ""
        what = "its whole part" if best.parallel.words else "the whole model"
        return f"one GPU holds {what}: {room}{unneeded}"
    whole = [row.fit for row in rows if row.strategy in WHOLE]
    told = "tight" if "tight" in whole else "too much"
    if best.strategy in STAGES:
        return f"{other}ZeRO-1 is {told}; sharded over {best.gpus}, {room}"
    where = "on" if "tight" in whole else "for"
    shards = _way(best).shards if best.parallel.words else best.gpus
    what = "each part of the model" if best.parallel.words else "the whole model"
    return f"{what} is {told} {where} one GPU; sharded over {shards}, {room}"


def _beside(row: PlanRow) -> str:
    """Return what a rank needs besides the GPU, after a semicolon."""
    if not row.offloads:
        return ""
    disk = f", and {_gib(row.nvme)} on NVMe" if row.nvme else ""
    return f"; each rank needs {_gib(row.host)} of its host's memory{disk}"


def _told(model: Model) -> str:
    name = f"{model.name}, " if model.name else ""
    whole = f"{name}{_number(model.parameters)} parameters"
    if model.trainable == model.parameters:
        return whole
    return f"{whole}, {_number(model.trainable)} of them trained"


def _number(count: float) -> str:
    for unit, factor in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g}{unit}"
    return f"{count:.0f}"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
