"""Diffusion models of diffusers, by their config, and the loss of a training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import mse_loss

from ddoctor.errors import DoctorError
from ddoctor.forecast.images import Images
from ddoctor.forecast.model.diffusion_inputs import KINDS, OTHERWISE, Fields, inputs_of
from ddoctor.forecast.model.outcome import Outcome

RENAMED = {
    "ada_norm_zero": "DiTTransformer2DModel",
    "ada_norm_single": "PixArtTransformer2DModel",
}
"""What diffusers makes of a Transformer2DModel with this norm, as of older checkpoints."""
ADDED = ("text_embeds", "time_ids", "resolution", "aspect_ratio")
"""Inputs that a model takes in one dictionary, ``added_cond_kwargs``."""


class Denoiser(nn.Module):
    """A diffusion model whose forward pass returns its loss."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, noise: Tensor, **inputs: Any) -> Outcome:
        """Return the mean squared error of the prediction, which has the shape of ``noise``."""
        if not torch.is_autocast_enabled("cpu"):  # it converts them where it has to
            inputs = {
                name: one.to(self.model.dtype) if one.is_floating_point() else one
                for name, one in inputs.items()
            }
        added = {name: inputs.pop(name) for name in ADDED if name in inputs}
        if added:
            inputs["added_cond_kwargs"] = added
        (predicted,) = self.model(**inputs, return_dict=False)
        return Outcome(mse_loss(predicted.float(), noise.float()))


class Denoising(NamedTuple):
    """A diffusion model, and what it is trained on."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[int, int], dict[str, Tensor]]
    """Makes inputs and noise from a number of samples, and the tokens of each one's text."""
    tokens: int
    """The usual tokens of its text; 0: it reads none."""


def is_config(config: object) -> bool:
    """Whether a config is that of a model of diffusers."""
    return isinstance(config, dict) and "_class_name" in config and "model_type" not in config


def read(source: str, config: Mapping[str, Any], images: Images | None = None) -> Denoising:
    """Return the model of a config of diffusers.

    ``images``: the size of an image in pixels, of which latents have an eighth on each side; None:
    latents of the config's ``sample_size``, or of 1024 × 1024 pixels for Flux.

    Raises:
        DoctorError: diffusers is not installed, the inputs of the class are not known, or a size in
            the config is no number.
    """
    try:
        import diffusers
    except ImportError:
        raise DoctorError(
            f"--model {source} needs diffusers: run python -m pip install diffusers"
        ) from None
    name = str(config["_class_name"])[:80]
    if name == "Transformer2DModel":
        name = RENAMED.get(str(config.get("norm_type")), name)
    kind, made = KINDS.get(name), getattr(diffusers, name, None)
    if kind is None or made is None:
        raise DoctorError(
            f"--model {source}: ddoctor cannot make the inputs of {name}, only those of "
            f"{', '.join(KINDS)}: {OTHERWISE}"
        )
    usual = signature(made.__init__).parameters
    fields = Fields(source, {**{key: one.default for key, one in usual.items()}, **config})
    sides = fields.sides(kind, images)
    makes = inputs_of(fields, kind, sides, signature(made.forward).parameters)

    def build() -> nn.Module:
        model = made.from_config(deepcopy(dict(config)))
        if name == "DiTTransformer2DModel":
            _gather_first(model)
        return Denoiser(model)

    return Denoising(
        name=f"{name} on {'pixels' if fields.scale == 1 else 'latents'} of {sides[0]}x{sides[1]}",
        build=build,
        batch=lambda samples, length: {key: make(samples, length) for key, make in makes.items()},
        tokens=kind.tokens,
    )


def _gather_first(model: Any) -> None:
    """Let FSDP gather the first block again for its embedding, which DiT's last layers read."""

    def gathered(*_: object) -> None:
        first = model.transformer_blocks[0]
        if isinstance(first, FSDPModule):
            first.unshard()

    model.transformer_blocks[0].norm1.emb.register_forward_pre_hook(gathered)
