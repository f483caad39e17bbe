"""A model from its configuration: built without weights, with synthetic samples as input."""

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
"""Makes an input from a config, a number of samples, and their length."""


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
    """Return height and width of an image: the model's, or the usual size."""
    size = getattr(config, "image_size", None) or 224
    return (size, size) if isinstance(size, int) else tuple(size)


def _spectra(config: Any, samples: int, length: int) -> Tensor:
    # Whisper halves the length by strides before it counts positions.
    return torch.zeros(samples, config.num_mel_bins, 2 * config.max_source_positions)


INPUTS: Mapping[str, Make] = {
    "input_ids": _tokens,
    "pixel_values": _images,
    "input_features": _spectra,
}
"""By the name of a class's input argument."""
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
"""The targets of the loss, by the end of a class's name."""
LONGEST = ("max_position_embeddings", "max_target_positions")


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """How to build a model and its inputs."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[int, int], Batch]
    """Makes the keyword arguments of a forward pass that returns a loss.

    From a number of samples and their length."""
    longest: int | None = None
    """Longest sequence of its position embeddings; None: no limit, or it reads no sequences."""


def from_config(source: str) -> Blueprint:
    """Return the model of a Hugging Face config file, its folder, or a model name on the Hub.

    Raises:
        DoctorError: it cannot be read, names no architecture, or ddoctor cannot make its input.
    """
    try:
        import transformers
    except ImportError:
        install = "run python -m pip install transformers"
        raise DoctorError(f"--model needs transformers: {install}") from None
    path = Path(source)
    place = path.parent if path.is_file() and path.name == "config.json" else path
    try:
        config = transformers.AutoConfig.from_pretrained(str(place))
    except Exception as error:  # each kind of config validates itself and raises any type
        raise DoctorError(f"--model {source}: {said(error)}") from None
    names = getattr(config, "architectures", None) or ()
    kind = next((found for name in names if (found := getattr(transformers, name, None))), None)
    if kind is None:
        raise DoctorError(
            f"--model {source}: its config names no architecture that transformers knows: "
            'add, for example, "architectures": ["LlamaForCausalLM"]'
        )
    # An encoder of images or sounds is idle if only text is the input.
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
            f"--model {source}: ddoctor cannot make the input of {name} ('{reads}') for a loss: "
            f"name a class in the config's architectures that ends with {', '.join(TARGETS)}, pass "
            "a function that makes its loss (--workload package.module:factory), or describe the "
            "model with --params, --activations and --layers"
        )
    makes = {reads: INPUTS[reads], **asked}
    return lambda samples, length: {
        key: make(config, samples, length) for key, make in makes.items()
    }


def said(error: Exception) -> str:
    """Return an error's message in one line."""
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    return f"{first} {others[-1].strip()}" if others and first.endswith(":") else first
