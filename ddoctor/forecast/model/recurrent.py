"""Layers that carry a state from token to token, which CUDA kernels compute in one pass.

Without these kernels, transformers computes them in Python: token by token, which takes hours on
fake tensors, or in chunks, whose tensors the kernels never make. Parameters tell such layers.
"""

from __future__ import annotations

from torch import nn

from ddoctor.errors import DoctorError
from ddoctor.forecast.model import scans

# RWKV and Griffin (RecurrentGemma); Mamba has a row of its A for each channel.
BY_TOKEN = ("time_decay", "recurrent_param")
STATES = "A_log"


def told(name: str, model: nn.Module) -> str:
    """Return what the plan of a model assumes of its recurrent layers; empty: it has none.

    Raises:
        DoctorError: they run token by token.
    """
    layers = [
        (one, key, tensor)
        for one in model.modules()
        for key, tensor in one._parameters.items()
        if tensor is not None
    ]
    states = [one for one, key, _ in layers if key == STATES]
    if any(
        key in BY_TOKEN or (key == STATES and tensor.dim() > 1 and not _known(one))
        for one, key, tensor in layers
    ):
        raise DoctorError(
            f"{name} has recurrent layers, which run token by token without their CUDA kernels, "
            "and a plan does not know what those keep: describe the model with --params, "
            "--activations and --layers"
        )
    if not states:
        return ""
    if all(map(_known, states)):
        return " (with the kernels of mamba_ssm)"
    return " (recurrent layers in torch, as without their CUDA kernels)"


def _known(layer: nn.Module) -> bool:
    return type(layer).__module__ == scans.MODULE
