"""Batches of images and text, for models of transformers that put them into the text.

Two kinds of models are known by their inputs:

- with ``image_grid_thw`` (Qwen2-VL and what follows it): patches of images of any size;
- without: images of one size, that of the config (LLaVA, Gemma 3, PaliGemma, InternVL).

The tokens of an image are the rows that the model's encoder makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ddoctor.errors import DoctorError
from ddoctor.forecast.images import Images

Batch = Mapping[str, Tensor | int]
# What tells of images that are read in other ways: inputs of the model, and fields of its config.
OTHERS = (
    "aspect_ratio_ids",
    "pixel_attention_mask",
    "spatial_shapes",
    "image_position_ids",
    "image_grid_pinpoints",
)
# The input of Gemma 3 and PaliGemma that tells images (1) from text (0). Models with a grid have
# another one for positions, and infer these without it, at the same sizes.
KINDS = "token_type_ids"


class _Layout(NamedTuple):
    """How a model reads one image."""

    pixels: tuple[int, ...]
    """Shape of its pixels, as one row or as several."""
    tokens: int
    """Its places in the text."""
    grid: tuple[int, int, int] | None = None
    """Frames, and patches of its height and width; None: it is read as a whole."""


class Feed(NamedTuple):
    """Samples with images."""

    batch: Callable[[int, int], Batch]
    """Makes inputs and labels. Integers are real tensors, as the model looks at their values."""
    tokens: int
    """Tokens of one image."""


def feed(kind: Any, config: Any, images: Images) -> Feed:
    """Return what makes samples with these images.

    Raises:
        DoctorError: the model reads no images, none of this size, or ddoctor cannot make them.
    """
    reads = signature(kind.forward).parameters
    token = getattr(config, "image_token_id", None)
    vision = getattr(config, "vision_config", None)
    others = [one for one in OTHERS if one in reads or hasattr(config, one)]
    if not isinstance(token, int) or vision is None or others or "input_ids" not in reads:
        why = f", which come with {others[0]}" if others else ""
        raise DoctorError(
            f"--images {images.text}: ddoctor cannot make the images of {kind.__name__}{why}: "
            "leave it out to plan for text alone"
        )
    try:
        in_patches = "image_grid_thw" in reads
        layout = (_in_patches if in_patches else _as_whole)(kind, config, images)
    except DoctorError:
        raise
    except Exception as error:  # the model's own code
        raise DoctorError(
            f"--images {images.text}: {kind.__name__} cannot read them without data "
            f"({type(error).__name__}): leave it out to plan for text alone"
        ) from None

    def batch(samples: int, length: int) -> Batch:
        with unset_fake_temporarily():
            kinds = _places(images.number, layout.tokens, length).repeat(samples, 1)
            made: dict[str, Tensor] = {
                "input_ids": token * kinds,
                "labels": torch.zeros_like(kinds),
            }
            if KINDS in reads:
                made[KINDS] = kinds.clone()
            if layout.grid is not None:
                made["image_grid_thw"] = torch.tensor([layout.grid] * samples * images.number)
        first, *rest = layout.pixels
        made["pixel_values"] = torch.zeros(samples * images.number * first, *rest)
        return made

    return Feed(batch, layout.tokens)


def _places(number: int, tokens: int, length: int) -> Tensor:
    """Return 1 at the places of images, each after a token of text.

    Raises:
        DoctorError: they take more than ``length`` tokens.
    """
    taken = number * (tokens + 1)
    if taken > length:
        raise DoctorError(
            f"--images: {number} × {tokens:,} tokens do not fit a sample of {length:,}: "
            f"pass --sequence {taken} or more"
        )
    image = torch.tensor([0] + [1] * tokens)
    return torch.cat([image.repeat(number), torch.zeros(length - taken, dtype=torch.long)])


def _in_patches(kind: Any, config: Any, images: Images) -> _Layout:
    """Return the layout of an image in patches, whose sides are rounded to whole tokens.

    As in smart_resize of transformers (qwen2_vl/image_processing_qwen2_vl.py), without its limits
    of pixels, which are the user's. An image counts as a frame that is repeated.
    """
    vision = config.vision_config
    size, merged = int(vision.patch_size), int(vision.spatial_merge_size)
    frames = getattr(vision, "temporal_patch_size", 1)
    channels = int(getattr(vision, "in_channels", 3))
    high, wide = (merged * max(1, round(side / (size * merged))) for side in images.sides)
    return _Layout(
        pixels=(high * wide, channels * frames * size**2),
        tokens=high * wide // merged**2,
        grid=(1, high, wide),
    )


def _as_whole(kind: Any, config: Any, images: Images) -> _Layout:
    """Return the layout of an image of the size in the config."""
    vision = config.vision_config
    size = getattr(vision, "image_size", None)
    sides = (size, size) if isinstance(size, int) else tuple(size or ())
    if len(sides) != 2 or getattr(vision, "model_type", "") == "pixtral":
        raise DoctorError(
            f"--images {images.text}: ddoctor cannot make the images of {kind.__name__}, which "
            "have any size: leave it out to plan for text alone"
        )
    if images.sides != sides:
        own = f"{images.number}x{sides[0]}x{sides[1]}"
        raise DoctorError(
            f"--images {images.text}: {kind.__name__} reads images or tiles of {sides[0]}x"
            f"{sides[1]}: pass their number, as --images {own}"
        )
    pixels = (1, getattr(vision, "num_channels", 3), *sides)
    with torch.device("meta"), torch.no_grad():
        made = kind(deepcopy(config)).get_image_features(torch.zeros(pixels), return_dict=True)
    rows = sum(one.numel() for one in made.pooler_output)
    return _Layout(pixels=pixels, tokens=rows // config.get_text_config().hidden_size)
