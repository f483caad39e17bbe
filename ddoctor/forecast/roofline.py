"""The time of a step: what it computes at the rate that trainings reach, and what no computing
hides of its communication.

Bytes as in ZeRO (arXiv 1910.02054, section 7): an all-reduce moves 2 (n - 1) / n of what it sums
through each GPU, an all-gather and a reduce-scatter half of that. What the optimizer's own step
takes, and the launching of kernels, is in the rates that were published; waiting for data is not.
"""

from __future__ import annotations

from statistics import fmean

from ddoctor import knowledge
from ddoctor.evidence.known_hardware import AllReduceFigures, GpuModel
from ddoctor.evidence.plan import GPUS_PER_HOST, StepTime, Strategy
from ddoctor.forecast.closed_form import COMPUTING, WEIGHT, Model, Precision
from ddoctor.forecast.devices import Device

# Where no training on this GPU was published: the middle of H100's (37 to 46 %, llm-foundry), which
# is the least of those that were.
USUAL_SHARE = 0.4
# 228 to 235 of an A100's 300 GB/s, and within training NCCL is 30 % slower than the isolated
# benchmark (vTrain, arXiv 2312.12391).
OF_NVLINK = 1 / 1.3
# Of matrix products the backward pass has two for one of the forward pass.
FORWARD = 1 / 3


def share_of_peak(gpu: GpuModel) -> float:
    """At which it computes."""
    return fmean(gpu.trained) if gpu.trained is not None else USUAL_SHARE


def step(
    model: Model, device: Device, strategy: Strategy, gpus: int, accumulation: int
) -> StepTime | None:
    """Of the optimizer; None: the FLOPs are not known, or the GPU's peak, or the link, as between
    hosts."""
    gpu = device.model
    peak = _peak(gpu, model.precision) if gpu is not None else None
    if gpu is None or peak is None or not model.flops:
        return None
    each = model.flops / (share_of_peak(gpu) * peak)
    if gpus == 1:
        return StepTime(compute=accumulation * each, exposed=0.0)
    link = _link(gpu) if gpus <= GPUS_PER_HOST else None
    if link is None:
        return None
    once = (gpus - 1) / gpus / link
    """Seconds of a byte in an all-gather."""
    forward, backward = FORWARD * each, (1 - FORWARD) * each
    if strategy == "ddp":
        # Gradients are summed in the last of the micro-batches.
        summed = 2 * once * model.trainable * WEIGHT[model.precision]
        return StepTime(compute=accumulation * each, exposed=max(0.0, summed - backward))
    gathered = once * model.parameters * COMPUTING[model.precision]
    scattered = once * model.trainable * COMPUTING[model.precision]
    again = 0.0 if strategy == "fsdp-gradients" else gathered
    exposed = max(0.0, gathered - forward) + max(0.0, again + scattered - backward)
    return StepTime(compute=accumulation * each, exposed=accumulation * exposed)


def _peak(gpu: GpuModel, precision: Precision) -> float | None:
    """FLOP/s of matrix products in this dtype; of floats no table tells."""
    known = {"bf16-mixed": gpu.bf16, "bf16": gpu.bf16, "fp16-mixed": gpu.fp16 or gpu.bf16}
    found = known.get(precision)
    return found * 1e12 if found is not None else None


def _link(gpu: GpuModel) -> float | None:
    """Bytes per second to and from the other GPUs of a host. Of a bridge nobody knows whether it
    was bought."""
    if gpu.nvlink is not None and not gpu.bridge:
        return OF_NVLINK * gpu.nvlink * 1e9
    over_pcie = knowledge.load(AllReduceFigures).pcie(gpu.pcie) if gpu.pcie is not None else None
    return over_pcie.published[0] * 1e9 if over_pcie is not None else None
