"""A model without weights, by its configuration or a user's function, and synthetic samples."""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

from ddoctor.errors import DoctorError
from ddoctor.forecast.closed_form import Model
from ddoctor.forecast.images import Images
from ddoctor.forecast.method import SFT, Method
from ddoctor.forecast.model import diffusion, recurrent
from ddoctor.forecast.model import images as with_images
from ddoctor.forecast.model.adapters import adapt, hidden
from ddoctor.forecast.model.caches import cached
from ddoctor.forecast.model.losses import replace_loss
from ddoctor.forecast.model.outcome import Outcome
from ddoctor.forecast.model.preferences import replace_step
from ddoctor.forecast.options import Attention, Lora, Precision, Quantized
from ddoctor.memory_sweep.work import Shape, check_loss, checked, factory
from ddoctor.memory_tracking.blocks import rows

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
MOST_MODULES = 100_000
"""Modules of a model: one of 94 layers with 128 experts each has 60,000."""
MOST_ROW = 5_000
"""Modules in one row: a plain net of 1,000 layers has 3,000, and 512 are the most experts."""
MOST_COUNTS = (
    (re.compile(r"(layers?|depths?|blocks)$"), 2_000),
    (re.compile(r"experts$"), MOST_ROW),
    (re.compile(r"^num_labels$"), 1_000_000),
)
"""The most that a field of a config may ask for, by its name.

Layers, such as num_hidden_layers, n_layer, depths: DeepNet has 1,000, and each takes a second to
measure. transformers lists labels by name: the datasets with most have 20,000."""
MOST_BYTES = 16 * 2**20
"""Bytes of a config; those on the Hub have a thousandth."""
# A usual length, if the model allows it.
USUAL_LENGTH = 2048
LONGEST = ("max_position_embeddings", "max_target_positions")


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """How to build a model and its inputs."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[int, int], Batch]
    """Makes the keyword arguments of a forward pass that returns a loss.

    From a number of samples and their length."""
    autocast: bool = False
    """Whether it computes in bfloat16 by autocast, even with weights in bfloat16."""
    longest: int | None = None
    """Longest sequence of its position embeddings; None: no limit, or it reads no sequences."""
    usual: int = USUAL_LENGTH
    """The length of its samples where none is asked for; 0: it reads no tokens."""
    cached: int | None = None
    """Numbers that it keeps of each token while it generates; None: not known."""

    def length(self, wanted: int | None) -> int:
        """Return the length of its samples: the given one, or a usual one.

        Raises:
            DoctorError: it allows no sequence of this length, or reads none.
        """
        if wanted is not None and self.longest is not None and wanted > self.longest:
            raise DoctorError(f"--sequence {wanted}: {self.name} allows at most {self.longest}")
        if wanted is not None and not self.usual:
            raise DoctorError(f"--sequence {wanted}: {self.name} reads no text: leave it out")
        return wanted or min(self.usual, self.longest or self.usual)

    def read(self, precision: Precision, optimizer: str) -> Model:
        """Return the model in numbers, built without weights.

        Raises:
            DoctorError: it cannot be built, or runs token by token.
        """
        try:
            model = on_meta(self.build)
        except DoctorError:
            raise
        except Exception as error:  # the model's own code, to which its config may not fit
            raise DoctorError(f"{self.name} cannot be built: {said(error)}") from None
        found = tuple(rows(model))
        return Model(
            name=self.name + recurrent.told(self.name, model),
            parameters=sum(one.numel() for one in model.parameters()) + hidden(model),
            trainable=sum(one.numel() for one in model.parameters() if one.requires_grad),
            precision=precision,
            optimizer=optimizer,
            layers=max(map(len, found), default=1),
            blocks=tuple(dict.fromkeys(type(row[0]).__name__ for row in found)),
        )


def from_config(
    source: str,
    attention: Attention | None = None,
    loss: str = "plain",
    *,
    lora: Lora | None = None,
    quantized: Quantized | None = None,
    method: Method = SFT,
    images: Images | None = None,
) -> Blueprint:
    """Return the model of a Hugging Face config file, its folder, or a model name on the Hub.

    A file or a folder may also be that of a diffusion model, of diffusers (``diffusion.read``).

    ``attention``: None: as transformers chooses, which is sdpa if the model has it. The kernels of
    flash attention keep what sdpa keeps, which chooses the same ones. ``loss``: plain, as the model
    computes it, or as ``losses.replace_loss`` names it. ``lora``, ``quantized``: as ``adapt``.
    ``method``: as ``replace_step``. ``images``: of each sample; None: samples of text alone.

    Raises:
        DoctorError: it cannot be read, names no architecture, or ddoctor cannot make its input.
    """
    path = Path(source)
    place = path.parent if os.path.isfile(path) and path.name == "config.json" else path
    content = _check_file(source, place)
    if diffusion.is_config(content):
        if attention == "eager" or loss != "plain" or not method.plain:
            raise DoctorError(
                f"--model {source}: --attention eager, --loss and --method go with models of "
                "transformers, and this is one of diffusers"
            )
        return _denoiser(diffusion.read(source, content, images), lora, quantized)
    try:
        import transformers
    except ImportError:
        install = "run python -m pip install transformers"
        raise DoctorError(f"--model needs transformers: {install}") from None
    try:
        # Otherwise it asks on the terminal whether to run code that lies beside the config.
        config = transformers.AutoConfig.from_pretrained(str(place), trust_remote_code=False)
    except Exception as error:  # each kind of config validates itself and raises any type
        raise DoctorError(f"--model {source}: {said(error)}") from None
    _check_counts(source, config.to_dict())
    if attention is not None:
        config._attn_implementation = "eager" if attention == "eager" else "sdpa"
    given = getattr(config, "architectures", None)
    names = map(str, given if isinstance(given, list) else ())
    found = (getattr(transformers, name, None) for name in names)
    kind = next((one for one in found if _is_model(one)), None)
    if kind is None:
        raise DoctorError(
            f"--model {source}: its config names no architecture that transformers knows: "
            'add, for example, "architectures": ["LlamaForCausalLM"]'
        )
    # An encoder of images or sounds is idle if only text is the input.
    senses = getattr(kind, "input_modalities", "text")
    deaf = images is None and kind.main_input_name == "input_ids" and set(senses) > {"text"}
    of_text = config.get_text_config(decoder=True)
    lengths = (getattr(of_text, name) for name in LONGEST if hasattr(of_text, name))
    longest = next(lengths, None)
    if longest is not None and not (isinstance(longest, int) and longest > 0):
        raise DoctorError(f"--model {source}: its longest sequence is no number above 0: {longest}")

    seen = ""
    if images is None:
        feed = _feeder(source, kind, config)
    else:
        feed, tokens = with_images.feed(kind, config, images)
        seen = f" with {images.number} images of {tokens:,} tokens"

    def build() -> nn.Module:
        # Activation checkpointing switches off the cache that the config asks for.
        model = kind(deepcopy(config))
        if loss != "plain":
            replace_loss(model, loss)
        if not method.plain:
            replace_step(model, method)
        return model if lora is None else adapt(model, lora, quantized)

    return Blueprint(
        name=kind.__name__
        + (" (on text alone)" if deaf else "")
        + seen
        + (f" with {attention} attention" if attention else "")
        + (f" with the loss {loss}" if loss != "plain" else "")
        + _adapters(lora, quantized),
        build=build,
        batch=lambda samples, length: feed(method.rows * samples, length),
        autocast=lora is not None and lora.full,
        longest=longest,
        cached=cached(of_text),
    )


def _denoiser(
    found: diffusion.Denoising, lora: Lora | None, quantized: Quantized | None
) -> Blueprint:
    def build() -> nn.Module:
        model = found.build()
        return model if lora is None else adapt(model, lora, quantized)

    return Blueprint(
        name=found.name + _adapters(lora, quantized),
        build=build,
        batch=found.batch,
        autocast=lora is not None and lora.full,
        usual=found.tokens,
    )


def _adapters(lora: Lora | None, quantized: Quantized | None) -> str:
    """Return how they continue the name of a model."""
    return (f" with LoRA {lora.text}" if lora is not None else "") + (
        f" on weights in 4 bits ({quantized})" if quantized else ""
    )


def _check_file(source: str, place: Path) -> Any:
    """Return the content of the config; None: it is no JSON, or on the Hub."""
    file = place / "config.json" if os.path.isdir(place) else place
    try:
        found = file.stat()
    except FileNotFoundError:
        _check_pipeline(source, place)
        return None  # a name on the Hub
    except OSError as error:
        raise DoctorError(f"--model {source}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise DoctorError(f"--model {source}: {file} is no file")
    if found.st_size > MOST_BYTES:
        raise DoctorError(f"--model {source}: a config has at most {MOST_BYTES >> 20} MiB")
    # What is no JSON, transformers says best.
    with suppress(OSError, ValueError, RecursionError):
        config = json.loads(file.read_bytes())
        _check_counts(source, config)
        return config
    return None


def _check_pipeline(source: str, place: Path) -> None:
    if (place / "model_index.json").is_file():
        raise DoctorError(
            f"--model {source}: this is a pipeline of diffusers: pass the folder of the model that "
            "is trained, usually unet or transformer in it"
        )


def _check_counts(source: str, config: object) -> None:
    """Refuse what takes hours or all memory before anything is built, even its layers' names."""
    rest = [config]
    while rest:
        one = rest.pop()
        if not isinstance(one, Mapping):
            continue
        rest += one.values()
        for name, value in one.items():
            counts = value if isinstance(value, list) else [value]
            asked = sum(count for count in counts if isinstance(count, int))
            for named, most in MOST_COUNTS:
                if named.search(str(name)) and asked > most:
                    raise DoctorError(
                        f"--model {source}: {name} is {value}, and a plan allows at most {most:,}: "
                        "lower it, or describe the model with --params, --activations and --layers"
                    )


def _is_model(found: Any) -> bool:
    import transformers

    return isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)


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


class Trained(nn.Module):
    """A model whose forward pass returns its loss."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, samples: int, tokens: int | None = None) -> Outcome:
        """Return the outcome for this many synthetic samples, with ``tokens`` each if not None."""
        return Outcome(self._loss(self.model, *Shape(samples, tokens).arguments))


def from_factory(name: str, tokens: int | None = None) -> Blueprint:
    """Return the model of ``package.module:factory``, in this folder or installed.

    The factory's optimizer is not used. ``tokens``: per sample, if its loss takes their number.

    Raises:
        DoctorError: there is no such function. Its result is checked when the model is built.
    """
    make = factory(name, str(Path.cwd()))

    def build() -> nn.Module:
        work = checked(name, make())
        check_loss(work, Shape(1, tokens))
        return Trained(work.model, work.loss)

    def batch(samples: int, length: int) -> Batch:
        return {"samples": samples} if tokens is None else {"samples": samples, "tokens": length}

    return Blueprint(name=name, build=build, batch=batch, longest=tokens)


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a model without weights, however large it is.

    It is on the meta device, not on fake tensors: code that builds a model reads single values of
    CPU tensors (a schedule of drop rates), and fake tensors have no values.

    Raises:
        DoctorError: it has more than ``MOST_MODULES``, or ``MOST_ROW`` of them in a row, as by a
            slip in its number of layers.
    """
    count = itertools.count(1)

    def counted(_: nn.Module, name: str, __: nn.Module | None) -> None:
        if next(count) > MOST_MODULES:
            raise DoctorError(f"a model of more than {MOST_MODULES:,} modules cannot be planned")
        if name.isdecimal() and int(name) >= MOST_ROW:
            raise DoctorError(
                f"a model with more than {MOST_ROW:,} modules in a row cannot be planned"
            )

    watch = register_module_module_registration_hook(counted)
    try:
        with torch.device("meta"):
            return build().train()
    finally:
        watch.remove()


def said(error: Exception) -> str:
    """Return an error's message in one line."""
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    return f"{first} {others[-1].strip()}" if others and first.endswith(":") else first
