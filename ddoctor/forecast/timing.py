"""The step times of a plan: by a measured step, else by a roofline of each operator.

By roofline, a step has the time of its operators, and its exposed communication. It does not wait
for data.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddoctor.evidence.plan import GPUS_PER_HOST, OFFLOADED, PlanRow, StepTime
from ddoctor.forecast import exchange, model_parallel, offloading
from ddoctor.forecast.closed_form import ForecastRow, Model
from ddoctor.forecast.devices import PlannedGpu
from ddoctor.forecast.measured import MeasuredStep
from ddoctor.forecast.roofline import Roofline, phases

WORTH_IT = 0.95
"""Of the time: what is nearer to it is not worth another precision."""


def step(
    model: Model, device: PlannedGpu, row: ForecastRow, measured: MeasuredStep | None
) -> StepTime | None:
    """Return a row's step time; None: not known, as with an optimizer step on a CPU."""
    if row.strategy in OFFLOADED:
        return None
    return (by_roofline if measured is None else measured.step)(model, device, row)


def with_tf32(
    model: Model, device: PlannedGpu, row: ForecastRow, step: StepTime | None
) -> StepTime | None:
    """Return an fp32 row's step time with TF32; None: no TF32, or its step was measured.

    TF32 uses tensor cores like half precision, at half the rate on numbers of twice the size, and
    reaches the same share of its peak.
    """
    if model.precision != "fp32" or step is None or step.source != "by roofline":
        return None
    return by_roofline(model, device, row, tf32=True)


def with_float8(
    model: Model, device: PlannedGpu, row: ForecastRow, step: StepTime | None
) -> StepTime | None:
    """Return a half-precision row's step time with linear layers in float8.

    None: the GPU has none, the step was measured, or float8 makes it no shorter. The memory stays
    the same: torchao keeps weights and inputs as they were, and casts them for each product.
    """
    if model.precision not in ("bf16", "bf16-mixed") or step is None:
        return None
    if step.source != "by roofline" or device.model is None or device.model.fp8 is None:
        return None
    found = by_roofline(model, device, row, float8=True)
    return found if found is not None and found.seconds < WORTH_IT * step.seconds else None


def by_roofline(
    model: Model,
    device: PlannedGpu,
    row: ForecastRow,
    *,
    tf32: bool = False,
    float8: bool = False,
) -> StepTime | None:
    """Return the time of an optimizer step; None: operators, a rate or the link are not known."""
    gpu = roofline(model, device, tf32=tf32, float8=float8)
    if gpu is None or model.work is None or device.model is None:
        return None
    parts = phases(model.work, gpu, row.shards)
    links, each = exchange.known(device.model), parts.micro_batch
    group = row.strategy, row.sharing, each, row.parallel.tensor
    exposed = links.exposed(model, *group)
    updating = links.updating(model, row.strategy, row.gpus)
    moving = model_parallel.seconds(model.traffic, row.parallel, links)
    if exposed is None or updating is None or moving is None:
        return None
    times = exchange.times(row.strategy, row.accumulation, pipelined=row.parallel.pipeline > 1)
    compute = row.accumulation * each + (row.accumulation - 1) * parts.summing + parts.optimizer
    compute += times * links.slowdown(model, *group)
    peak = gpu.peak(half=model.precision != "fp32")
    return StepTime(
        compute=compute,
        exposed=times * exposed + row.accumulation * moving + updating,
        # Until the first micro-batch is at the last stage, and since the last one left it
        # (arXiv 2104.04473, section 2.2.1).
        bubble=(row.parallel.pipeline - 1) * (each + moving),
        share_of_peak=row.accumulation * model.work.flops / compute / peak,
    )


def links(
    model: Model, device: PlannedGpu, rows: Sequence[PlanRow], measured: MeasuredStep | None
) -> str:
    """Return the measured or assumed link rates, and the unknown links that a row needs.

    Empty: there are none, or no row has a step time.
    """
    if measured is not None:
        found = measured.linked(device)
    elif device.model is not None and roofline(model, device) is not None:
        found = exchange.known(device.model)
    else:
        return ""
    far = any(row.gpus > GPUS_PER_HOST for row in rows)
    timed = [row for row in rows if not row.offloads]
    near = any(1 < row.gpus <= GPUS_PER_HOST and row.step is None for row in timed)
    used = {"between hosts": found.between} if far else {}
    used |= {"within a host": found.within} if near else {}
    told = [
        f"{where} {link.rate / 1e9:.3g} GB/s in a training, {link.source}"
        for where, link in used.items()
        if link is not None
    ]
    unknown = " and ".join(where for where, link in used.items() if link is None)
    if unknown:
        told.append(f"not known {unknown}: pass a bundle of the probe collectives with --measured")
    return "; ".join([*told, *offloading.told(model, device, rows)])


def roofline(
    model: Model, device: PlannedGpu, *, tf32: bool = False, float8: bool = False
) -> Roofline | None:
    """Return the roofline for this model; None: its operators or a rate is not known."""
    gpu = device.model
    if gpu is None or model.work is None or gpu.memory_bandwidth is None:
        return None
    if (tf32 and gpu.tf32 is None) or gpu.fp32 is None:
        return None
    half = gpu.bf16 or (gpu.fp16 if model.precision in ("fp16-mixed", "fp32") else None)
    return None if half is None else Roofline(gpu, tf32=tf32, float8=float8)
