"""The host memory of loading the weights and of saving them whole, before and after the steps.

transformers maps safetensors and converts them tensor by tensor (modeling_utils.py). Weights of the
dtype of their file stay mapped, and the ranks of a host share them. Weights of another dtype are a
copy of each rank. Measured with transformers 5.24: 5 % of a bfloat16 model was private memory after
loading as bfloat16, and 101 % of its fp32 size after loading as fp32.
"""

from __future__ import annotations

from ddoctor.evidence.plan import GPUS_PER_HOST, HostPeaks, PlanRow
from ddoctor.forecast.closed_form import COMPUTING, WEIGHT, Model


def host_peaks(model: Model, row: PlanRow) -> HostPeaks:
    """Return the host memory of a row's ranks."""
    weights = model.parameters * WEIGHT[model.precision]
    computing = model.parameters * COMPUTING[model.precision]
    saving = 0.0
    # torch.distributed.checkpoint.state_dict, full_state_dict with cpu_offload: rank 0 has all of
    # the model in host memory. DDP has it on each GPU, and saves tensor by tensor.
    if row.strategy.startswith("fsdp"):
        saving = weights
    elif row.strategy.startswith("zero-3"):
        # DeepSpeed's engine.py, _zero3_consolidated_16bit_state_dict.
        saving = computing
    # Each rank of DPO and GRPO also loads the reference, in the computing precision.
    reference = computing if row.parts.reference else 0
    return HostPeaks(
        ranks=min(row.gpus, GPUS_PER_HOST),
        loading=round(weights + reference),
        mapped=model.precision == "bf16",
        saving=round(saving),
    )
