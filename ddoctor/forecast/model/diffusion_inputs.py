"""The inputs of diffusion models of diffusers, by the config of a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ddoctor.errors import DoctorError
from ddoctor.forecast.images import Images

Make = Callable[[int, int], Tensor]
"""Makes an input from a number of samples, and the tokens of each one's text."""
OTHERWISE = "pass a function that makes its loss (--workload package.module:factory)"
SCALE = 8
"""Pixels on a side of an image, for each place of its latents."""
PACKED = 2
"""Places of latents on each side of a row of Flux."""
OF_PIXELS = (3, 6)
"""Channels of models that read pixels, of one image or of two, and no latents."""


class Kind(NamedTuple):
    """What a class reads besides latents and a timestep."""

    text: tuple[str, ...] = ()
    """Fields of the config with the width of its text; the first that is set counts."""
    tokens: int = 0
    """The usual length of its text, that of its pipeline in diffusers; 0: it reads none."""
    labelled: bool = False
    """Whether it always reads a class label."""
    packed: int | None = None
    """The usual side of its latents, if it reads them as a row of packed places."""


KINDS: Mapping[str, Kind] = {
    "UNet2DModel": Kind(),
    "UNet2DConditionModel": Kind(("encoder_hid_dim", "cross_attention_dim"), 77),
    "DiTTransformer2DModel": Kind(labelled=True),
    # 120 of PixArt-α, 300 of PixArt-Σ.
    "PixArtTransformer2DModel": Kind(("caption_channels", "cross_attention_dim"), 300),
    # 77 of CLIP, and 256 of T5.
    "SD3Transformer2DModel": Kind(("joint_attention_dim",), 333),
    "FluxTransformer2DModel": Kind(("joint_attention_dim",), 512, packed=128),
}
CONDITIONS: Mapping[str, tuple[str | None, ...]] = {
    "class_embed_type": (None, "timestep"),
    "addition_embed_type": (None, "text", "text_time"),
    "encoder_hid_dim_type": (None, "text_proj"),
}
"""Fields of a UNet's config, with the kinds of conditions whose inputs are known."""
TIMES = 6
"""Numbers on the size and the place of an image, for SDXL."""


class Fields(NamedTuple):
    """A config with the defaults of its class."""

    source: str
    values: Mapping[str, Any]

    def number(self, *names: str) -> int:
        """Return the first field that is set; of a list, its first number.

        Raises:
            DoctorError: it is no number above 0.
        """
        name = next((one for one in names if self.values.get(one) is not None), names[-1])
        found = self.values.get(name)
        return self.positive(name, found[0] if isinstance(found, list) and found else found)

    def positive(self, name: str, found: object) -> int:
        """Return a number from the config, if it is above 0."""
        if not isinstance(found, int) or found < 1:
            raise DoctorError(f"--model {self.source}: its {name} is no number above 0: {found}")
        return found

    @property
    def scale(self) -> int:
        """Return the pixels on a side, for each place that the model reads."""
        return 1 if self.number("in_channels") in OF_PIXELS else SCALE

    def sides(self, kind: Kind, images: Images | None) -> tuple[int, int]:
        """Return height and width of what the model reads, in latents, before Flux packs it.

        Raises:
            DoctorError: the size is not known, or ``images`` does not fit the model.
        """
        if images is None:
            size = kind.packed or self.values.get("sample_size")
            if size is None:
                raise DoctorError(
                    f"--model {self.source}: its config has no sample_size: pass the size of an "
                    "image in pixels, as --images 1x512x512"
                )
            pair = size if isinstance(size, list) and len(size) == 2 else (size, size)
            return self.positive("sample_size", pair[0]), self.positive("sample_size", pair[1])
        patch = self.number("patch_size") if self.values.get("patch_size") else 1
        whole = self.scale * (PACKED if kind.packed else patch)
        if images.number > 1 or any(side % whole for side in images.sides):
            raise DoctorError(
                f"--images {images.text}: a sample is one image, with sides in multiples of "
                f"{whole} pixels, such as 1x{64 * whole}x{64 * whole}"
            )
        return images.sides[0] // self.scale, images.sides[1] // self.scale


def inputs_of(
    fields: Fields, kind: Kind, sides: tuple[int, int], reads: Collection[str]
) -> Mapping[str, Make]:
    """Return what makes the noise, in the shape of the prediction, and each input.

    ``sides``: height and width of the latents; ``reads``: the arguments of the class.

    Raises:
        DoctorError: a size is missing, or a condition is of a kind that is not known.
    """
    for field, known in CONDITIONS.items():
        if fields.values.get(field) not in known:
            raise DoctorError(
                f"--model {fields.source}: ddoctor cannot make the input of its {field} "
                f"{fields.values[field]!r}: {OTHERWISE}"
            )
    has = fields.values.get
    channels = fields.number("in_channels")
    predicted = fields.number("out_channels", "in_channels")
    places = sides[0] // PACKED * (sides[1] // PACKED)

    def seen(channels: int) -> Make:
        return _floats(places, channels) if kind.packed else _floats(channels, *sides)

    latents = "sample" if "sample" in reads else "hidden_states"
    made = {"noise": seen(predicted), latents: seen(channels), "timestep": _numbers}
    if kind.text:
        width = fields.number(*kind.text)
        made["encoder_hidden_states"] = lambda samples, length: torch.zeros(samples, length, width)
    if "pooled_projections" in reads:
        made["pooled_projections"] = _floats(fields.number("pooled_projection_dim"))
    if "img_ids" in reads:
        made["img_ids"] = lambda samples, length: torch.zeros(places, 3)
        made["txt_ids"] = lambda samples, length: torch.zeros(length, 3)
    if has("guidance_embeds"):
        made["guidance"] = _floats()
    if kind.labelled or has("num_class_embeds") or has("class_embed_type"):
        made["class_labels"] = _numbers
    if has("addition_embed_type") == "text_time":
        # A model embeds each time by itself, and then projects all with the text.
        whole = fields.number("projection_class_embeddings_input_dim")
        times = TIMES * fields.number("addition_time_embed_dim")
        made["text_embeds"] = _floats(fields.positive("text_embeds", whole - times))
        made["time_ids"] = _floats(TIMES)
    if "use_additional_conditions" in fields.values:
        made |= {"resolution": _floats(2), "aspect_ratio": _floats(1)}
    return made


def _floats(*shape: int) -> Make:
    return lambda samples, length: torch.zeros(samples, *shape)


def _numbers(samples: int, length: int) -> Tensor:
    return torch.zeros(samples, dtype=torch.long)
