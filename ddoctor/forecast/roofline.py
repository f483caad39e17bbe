"""The time of a step by roofline: its FLOPs at a published rate, and its exposed communication.

The published rates include the optimizer step and kernel launches, but no waiting for data.
"""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

from ddoctor.evidence.known_hardware import GpuModel
from ddoctor.evidence.plan import StepTime
from ddoctor.forecast import exchange
from ddoctor.forecast.closed_form import Model, Precision
from ddoctor.forecast.devices import PlannedGpu
from ddoctor.forecast.forecaster import ForecastRow

# Without a published training on this GPU: the lowest published share, of H100s, which reach 37 to
# 46 % in llm-foundry and 33 to 39 % in torchtitan.
USUAL_SHARE = 0.4
# BERT-large in fp32 on V100s, whose fp32 matrix products have no tensor cores: 9 to 42
# samples/s of 512 to 128 tokens are 57 to 64 % (NVIDIA DeepLearningExamples, July 2020, before its
# samples were sorted by length).
SHARE_OF_FLOATS = 0.6
# The smallest published model. Smaller ones wait for kernel launches.
SMALLEST = 125e6


class ComputeRate(NamedTuple):
    """The rate at which a GPU trains."""

    share: float
    """Share of the peak, 0 to 1."""
    peak: float
    """Peak FLOP/s of matrix products."""

    def seconds(self, model: Model) -> float:
        """Return the seconds of a micro-batch."""
        return model.flops / (self.share * self.peak)


def rate(model: Model, device: PlannedGpu, *, tf32: bool = False) -> ComputeRate | None:
    """Return the rate; None: the model is small, or its FLOPs or the GPU's peak are not known.

    TF32 uses tensor cores like half precision, at half the rate on numbers of twice the size, and
    reaches the same share. BERT-large in half precision is 1.8 to 1.9 times as fast on A100s
    (NVIDIA DeepLearningExamples, July 2020).
    """
    gpu = device.model
    peak = _peak(gpu, model.precision, tf32=tf32) if gpu is not None else None
    if gpu is None or peak is None or not model.flops or model.parameters < SMALLEST:
        return None
    usual = fmean(gpu.trained) if gpu.trained is not None else USUAL_SHARE
    vectors = model.precision == "fp32" and not tf32
    return ComputeRate(share=SHARE_OF_FLOATS if vectors else usual, peak=1e12 * peak)


def step(
    model: Model, device: PlannedGpu, row: ForecastRow, *, tf32: bool = False
) -> StepTime | None:
    """Return the time of an optimizer step; None: the rate or the link is not known."""
    found = rate(model, device, tf32=tf32)
    if found is None or device.model is None:
        return None
    each = found.seconds(model)
    exposed = exchange.known(device.model).exposed(model, row.strategy, row.gpus, each)
    if exposed is None:
        return None
    return StepTime(
        compute=row.accumulation * each,
        exposed=exchange.times(row) * exposed,
        share_of_peak=found.share,
    )


def _peak(gpu: GpuModel, precision: Precision, *, tf32: bool) -> float | None:
    """Return TFLOP/s of matrix products in this precision."""
    floats = gpu.tf32 if tf32 else gpu.fp32
    known = {"fp32": floats, "bf16-mixed": gpu.bf16, "bf16": gpu.bf16}
    return gpu.fp16 or gpu.bf16 if precision == "fp16-mixed" else known[precision]
