"""A model as its configuration describes it: built without weights, fed with made-up samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ddoctor.errors import DoctorError

Batch = Mapping[str, Tensor | int]
Make = Callable[[Any, int, int], Tensor]
"""Of a config, so many samples, so long."""


def _tokens(config: Any, samples: int, length: int) -> Tensor:
    return torch.zeros(samples, length, dtype=torch.long)


def _numbers(config: Any, samples: int, length: int) -> Tensor:
    return torch.zeros(samples, dtype=torch.long)


def _images(config: Any, samples: int, length: int) -> Tensor:
    seen = getattr(config, "vision_config", config)
    return torch.zeros(samples, getattr(seen, "num_channels", 3), *_sides(seen))


def _masks(config: Any, samples: int, length: int) -> Tensor:
    return torch.zeros(samples, *_sides(config), dtype=torch.long)


def _sides(config: Any) -> tuple[int, int]:
    """Of an image: the model's own, or else the usual one."""
    size = getattr(config, "image_size", None) or 224
    return (size, size) if isinstance(size, int) else tuple(size)


def _spectra(config: Any, samples: int, length: int) -> Tensor:
    # Whisper halves them by strides before it counts positions.
    return torch.zeros(samples, config.num_mel_bins, 2 * config.max_source_positions)


INPUTS: Mapping[str, Make] = {
    "input_ids": _tokens,
    "pixel_values": _images,
    "input_features": _spectra,
}
"""By the name that a class gives what it reads."""
TARGETS: Mapping[str, Mapping[str, Make]] = {
    "CausalLM": {"labels": _tokens},
    "LMHeadModel": {"labels": _tokens},
    "MaskedLM": {"labels": _tokens},
    "ConditionalGeneration": {"labels": _tokens},
    "TokenClassification": {"labels": _tokens},
    "SequenceClassification": {"labels": _numbers},
    "ImageClassification": {"labels": _numbers},
    "QuestionAnswering": {"start_positions": _numbers, "end_positions": _numbers},
    "SemanticSegmentation": {"labels": _masks},
}
"""By the end of a class's name: what its loss is computed from."""
LONGEST = ("max_position_embeddings", "max_target_positions")


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
    except Exception as error:  # each kind of config checks itself, and raises what it likes
        raise DoctorError(f"--model {source}: {said(error)}") from None
    names = getattr(config, "architectures", None) or ()
    kind = next((found for name in names if (found := getattr(transformers, name, None))), None)
    if kind is None:
        raise DoctorError(
            f"--model {source}: its config names no architecture that transformers knows: "
            'add, say, "architectures": ["LlamaForCausalLM"]'
        )
    # An encoder of images or sounds stands by where only text comes.
    senses = getattr(kind, "input_modalities", "text")
    deaf = kind.main_input_name == "input_ids" and set(senses) > {"text"}
    of_text = config.get_text_config(decoder=True)
    return Blueprint(
        name=kind.__name__ + (" (on text alone)" if deaf else ""),
        build=lambda: kind(config),
        batch=_feeder(source, kind, config),
        longest=next((getattr(of_text, name) for name in LONGEST if hasattr(of_text, name)), None),
    )


def _feeder(source: str, kind: Any, config: Any) -> Callable[[int, int], Batch]:
    name, reads = kind.__name__, kind.main_input_name
    asked = next((makes for end, makes in TARGETS.items() if name.endswith(end)), None)
    if reads not in INPUTS or asked is None:
        raise DoctorError(
            f"--model {source}: nobody knows what to feed {name} ('{reads}') for a loss: name a "
            f"class in the config's architectures that ends with {', '.join(TARGETS)}, give a "
            "function that makes its loss, --workload package.module:factory, or what you know of "
            "it, --params, --activations and --layers"
        )
    makes = {reads: INPUTS[reads], **asked}
    return lambda samples, length: {
        key: make(config, samples, length) for key, make in makes.items()
    }


def said(error: Exception) -> str:
    """In a line."""
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    return f"{first} {others[-1].strip()}" if others and first.endswith(":") else first
