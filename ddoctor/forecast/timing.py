"""The step times of a plan: by a measured step, else by roofline.

By roofline, a step takes its FLOPs at a published rate, and its exposed communication. The
published rates include the optimizer step and kernel launches, but no waiting for data.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ddoctor.evidence.plan import GPUS_PER_HOST, PlanRow, StepTime
from ddoctor.forecast import exchange
from ddoctor.forecast.closed_form import ForecastRow, Model
from ddoctor.forecast.devices import PlannedGpu
from ddoctor.forecast.measured import MeasuredStep

# Without a published training on this GPU: the lowest published share, of H100s, which reach 37 to
# 46 % in llm-foundry and 33 to 39 % in torchtitan.
USUAL_SHARE = 0.4
# BERT-large in fp32 on V100s, whose fp32 matrix products have no tensor cores: 9 to 42
# samples/s of 512 to 128 tokens are 57 to 64 % (NVIDIA DeepLearningExamples, July 2020, before its
# samples were sorted by length).
SHARE_OF_FLOATS = 0.6
# The smallest published model. Smaller ones wait for kernel launches.
SMALLEST = 125e6


def step(
    model: Model, device: PlannedGpu, row: ForecastRow, measured: MeasuredStep | None
) -> StepTime | None:
    """Return a row's step time; None: not known, as with an optimizer step on a CPU."""
    if row.strategy == "fsdp-offload":
        return None
    return (by_roofline if measured is None else measured.step)(model, device, row)


def with_tf32(
    model: Model, device: PlannedGpu, row: ForecastRow, step: StepTime | None
) -> StepTime | None:
    """Return an fp32 row's step time with TF32; None: no TF32, or its step was measured.

    TF32 uses tensor cores like half precision, at half the rate on numbers of twice the size, and
    reaches the same share. BERT-large in half precision is 1.8 to 1.9 times as fast on A100s
    (NVIDIA DeepLearningExamples, July 2020).
    """
    if model.precision != "fp32" or step is None or step.source != "by roofline":
        return None
    return by_roofline(model, device, row, tf32=True)


def by_roofline(
    model: Model, device: PlannedGpu, row: ForecastRow, *, tf32: bool = False
) -> StepTime | None:
    """Return the time of an optimizer step; None: the rate or the link is not known."""
    found = _rate(model, device, tf32=tf32)
    if found is None or device.model is None:
        return None
    share, peak = found
    each = model.flops / (share * peak)
    exposed = exchange.known(device.model).exposed(model, row.strategy, row.gpus, each)
    if exposed is None:
        return None
    return StepTime(
        compute=row.accumulation * each,
        exposed=exchange.times(row.strategy, row.accumulation) * exposed,
        share_of_peak=share,
    )


def links(
    model: Model, device: PlannedGpu, rows: Sequence[PlanRow], measured: MeasuredStep | None
) -> str:
    """Return the measured or assumed link rates, and the unknown links that a row needs.

    Empty: there are none, or no row has a step time.
    """
    if measured is not None:
        found = measured.linked(device)
    elif device.model is not None and _rate(model, device) is not None:
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


def _rate(model: Model, device: PlannedGpu, *, tf32: bool = False) -> tuple[float, float] | None:
    """Return the share of the peak, and the peak in FLOP/s of matrix products in this precision.

    None: the model is small, or its FLOPs or the GPU's peak are not known.
    """
    gpu = device.model
    if gpu is None or not model.flops or model.parameters < SMALLEST:
        return None
    peaks = {"fp32": gpu.tf32 if tf32 else gpu.fp32, "fp16-mixed": gpu.fp16 or gpu.bf16}
    peak = peaks.get(model.precision, gpu.bf16)
    if peak is None:
        return None
    usual = fmean(gpu.trained) if gpu.trained is not None else USUAL_SHARE
    vectors = model.precision == "fp32" and not tf32
    return SHARE_OF_FLOATS if vectors else usual, 1e12 * peak
