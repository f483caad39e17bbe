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

# Where no training on this GPU was published: what H100s reach, 37 to 46 % in llm-foundry and 33 to
# 39 % in torchtitan, which is the least of those that were.
USUAL_SHARE = 0.4
# The smallest model of them. Smaller ones wait for their kernels to be launched.
SMALLEST = 125e6
# 228 to 235 of an A100's 300 GB/s, and within training NCCL is 30 % slower than the isolated
# benchmark (vTrain, arXiv 2312.12391).
OF_NVLINK = 1 / 1.3
# Of matrix products the backward pass has two for one of the forward pass.
FORWARD = 1 / 3


def step(
    model: Model, device: Device, strategy: Strategy, gpus: int, accumulation: int
) -> StepTime | None:
    """Of the optimizer; None: the model is small, or its FLOPs are not known, the GPU's peak, or
    the link, as between hosts."""
    gpu = device.model
    peak = _peak(gpu, model.precision) if gpu is not None else None
    if gpu is None or peak is None or not model.flops or model.parameters < SMALLEST:
        return None
    share = fmean(gpu.trained) if gpu.trained is not None else USUAL_SHARE
    each = model.flops / (share * peak)
    exposed = _exposed(model, gpu, strategy, gpus, each)
    if exposed is None:
        return None
    # DDP sums gradients in the last of the micro-batches, FSDP gathers parameters in each.
    times = accumulation if strategy.startswith("fsdp") else 1
    return StepTime(compute=accumulation * each, exposed=times * exposed, share_of_peak=share)


def _exposed(
    model: Model, gpu: GpuModel, strategy: Strategy, gpus: int, computing: float
) -> float | None:
    """Seconds in a micro-batch that computes for so long."""
    if gpus == 1:
        return 0.0
    link = _link(gpu) if gpus <= GPUS_PER_HOST else None
    if link is None:
        return None
    forward, backward = FORWARD * computing, (1 - FORWARD) * computing
    gather = (gpus - 1) / gpus / link  # seconds of each byte
    if strategy == "ddp":
        return max(0.0, 2 * gather * model.trainable * WEIGHT[model.precision] - backward)
    gathered = gather * model.parameters * COMPUTING[model.precision]
    scattered = gather * model.trainable * COMPUTING[model.precision]
    again = 0.0 if strategy == "fsdp-gradients" else gathered
    return max(0.0, gathered - forward) + max(0.0, again + scattered - backward)


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
