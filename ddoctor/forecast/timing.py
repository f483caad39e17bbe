"""How long the steps of a plan take: by the one that was measured, else by roofline."""

from __future__ import annotations

from collections.abc import Sequence

from ddoctor.evidence.plan import GPUS_PER_HOST, PlanRow, StepTime
from ddoctor.forecast import exchange, roofline
from ddoctor.forecast.closed_form import Model
from ddoctor.forecast.devices import PlannedGpu
from ddoctor.forecast.forecaster import ForecastRow
from ddoctor.forecast.measured import MeasuredStep


def step(
    model: Model, device: PlannedGpu, row: ForecastRow, measured: MeasuredStep | None
) -> StepTime | None:
    """Of a row; None: it is not known, nor is the optimizer's step on a CPU."""
    if row.strategy == "fsdp-offload":
        return None
    known = roofline.step if measured is None else measured.step
    return known(model, device, row)


def with_tf32(
    model: Model, device: PlannedGpu, row: ForecastRow, step: StepTime | None
) -> StepTime | None:
    """Of a row of floats, if their matrix products took TF32; None: it has none, or its step was
    measured."""
    if model.precision != "fp32" or step is None or step.source != "by roofline":
        return None
    return roofline.step(model, device, row, tf32=True)


def links(
    model: Model, device: PlannedGpu, rows: Sequence[PlanRow], measured: MeasuredStep | None
) -> str:
    """How fast those are that were measured or supposed, and which that a row needs are not known;
    empty: none, or no row has the time of a step anyway."""
    if measured is not None:
        found = measured.linked(device)
    elif device.model is not None and roofline.rate(model, device) is not None:
        found = exchange.known(device.model)
    else:
        return ""
    far = any(row.gpus > GPUS_PER_HOST for row in rows)
    near = any(1 < row.gpus <= GPUS_PER_HOST and row.step is None for row in rows)
    used = {"between hosts": found.between} if far else {}
    used |= {"within a host": found.within} if near else {}
    told = [
        f"{where} {link.rate / 1e9:.3g} GB/s in a training, {link.source}"
        for where, link in used.items()
        if link is not None
    ]
    unknown = " and ".join(where for where, link in used.items() if link is None)
    if unknown:
        told.append(f"not known {unknown}: --measured takes what the probe collectives wrote")
    return "; ".join(told)
