"""The step times of a plan: by a measured step, else by roofline."""

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
    """Return a row's step time; None: not known, as with an optimizer step on a CPU."""
    if row.strategy == "fsdp-offload":
        return None
    known = roofline.step if measured is None else measured.step
    return known(model, device, row)


def with_tf32(
    model: Model, device: PlannedGpu, row: ForecastRow, step: StepTime | None
) -> StepTime | None:
    """Return an fp32 row's step time with TF32; None: no TF32, or its step was measured."""
    if model.precision != "fp32" or step is None or step.source != "by roofline":
        return None
    return roofline.step(model, device, row, tf32=True)


def links(
    model: Model, device: PlannedGpu, rows: Sequence[PlanRow], measured: MeasuredStep | None
) -> str:
    """Return the measured or assumed link rates, and the unknown links that a row needs.

    Empty: there are none, or no row has a step time.
    """
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
        told.append(f"not known {unknown}: pass a bundle of the probe collectives with --measured")
    return "; ".join(told)
