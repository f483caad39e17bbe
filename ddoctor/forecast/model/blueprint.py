"""A model as its configuration describes it: built without weights, fed with made-up samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ddoctor.errors import DoctorError

Batch = Mapping[str, Tensor]
# What a loss that is computed from `labels` takes for each token, and for each sample.
PER_TOKEN = ("CausalLM", "LMHeadModel", "MaskedLM", "ConditionalGeneration", "TokenClassification")
PER_SAMPLE = ("SequenceClassification", "ImageClassification")


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """How to build a model, and what to feed it."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[int, int], Batch]
    """Of so many samples, so long: keyword arguments of a forward pass that returns a loss."""
    longest: int | None = None
    """What its position embeddings allow; None: nothing, or it reads no sequences."""


def from_config(source: str) -> Blueprint:
    """Of a folder or file with a Hugging Face config, or of a model that the Hub knows.

    Raises:
        DoctorError: it cannot be read, names no architecture, or needs data that nobody knows how
            to make.
    """
    try:
        import transformers
    except ImportError:
        install = "python -m pip install transformers"
        raise DoctorError(f"--model needs transformers: {install}") from None
    path = Path(source)
    place = path.parent if path.is_file() and path.name == "config.json" else path
    try:
        config = transformers.AutoConfig.from_pretrained(str(place))
    except (OSError, ValueError, KeyError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DoctorError(f"--model {source}: {why}") from None
    names = getattr(config, "architectures", None) or ()
    kind = next((found for name in names if (found := getattr(transformers, name, None))), None)
    if kind is None:
        raise DoctorError(
            f"--model {source}: its config names no architecture that transformers knows: "
            'add, say, "architectures": ["LlamaForCausalLM"]'
        )
    return Blueprint(
        name=kind.__name__,
        build=lambda: kind(config),
        batch=_feeder(source, kind, config),
        longest=getattr(config, "max_position_embeddings", None),
    )


def _feeder(source: str, kind: Any, config: Any) -> Callable[[int, int], Batch]:
    name, needs = kind.__name__, kind.main_input_name
    per_token, per_sample = name.endswith(PER_TOKEN), name.endswith(PER_SAMPLE)
    if needs == "input_ids" and (per_token or per_sample):

        def tokens(samples: int, length: int) -> Batch:
            ids = torch.zeros(samples, length, dtype=torch.long)
            labels = ids.clone() if per_token else torch.zeros(samples, dtype=torch.long)
            return {"input_ids": ids, "labels": labels}

        return tokens
    if needs == "pixel_values" and per_sample:

        def images(samples: int, length: int) -> Batch:
            del length  # the size of its images is the model's own
            side = getattr(config, "image_size", None) or 224
            pixels = torch.zeros(samples, getattr(config, "num_channels", 3), side, side)
            return {"pixel_values": pixels, "labels": torch.zeros(samples, dtype=torch.long)}

        return images
    raise DoctorError(
        f"--model {source}: {name} needs '{needs}' and a loss, and nobody knows how to make them: "
        "name a class with a head in the config's architectures, as LlamaForCausalLM"
    )
