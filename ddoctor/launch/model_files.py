"""How many parameters the models have that a launch names, by the files of those that are here.

A model is a folder, or in the cache of the Hub (``HF_HUB_CACHE``, else ``hub`` in ``HF_HOME``).
``model.safetensors.index.json`` tells the bytes of all weights; else ``config.json`` gives the
shapes of a decoder, whose matrices are added up as transformers makes them: norms and biases, below
1 %, are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import COUNTED, Setting
from ddoctor.launch import files

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
OF_HUB = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
LONGEST = 1000
"""Characters of a name."""
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
# Decoders with three matrices in each MLP, of which one is a gate.
GATED = frozenset(
    (
        *("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "phi3"),
        *("gemma3_text", "stablelm", "olmo", "olmo2", "granite", "smollm3"),
    )
)
PLAIN = frozenset(("gpt2", "gpt_neox", "phi", "starcoder2"))
NAMES = {
    "width": ("hidden_size", "n_embd"),
    "layers": ("num_hidden_layers", "n_layer"),
    "heads": ("num_attention_heads", "n_head"),
    "words": ("vocab_size",),
}
"""transformers/models: the keys of a config; GPT-2 has names of another form."""


def counted(names: Iterable[str], folder: Path) -> Iterator[Setting]:
    """Yield the parameters of each model whose files are here, as ``Launch.parameters`` reads."""
    for name in dict.fromkeys(names):
        place = _place(name, folder)
        number = _parameters(place) if place is not None else None
        if number:
            at = f"{name}/{CONFIG}"
            yield Setting(name=COUNTED + name, value=str(number), file=at)


def _place(name: str, folder: Path) -> Path | None:
    """The folder of a model; None: it is not here."""
    if not name or len(name) > LONGEST or "\0" in name:
        return None
    if files.is_there(folder / name / CONFIG):
        return folder / name
    if not OF_HUB.fullmatch(name):
        return None
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    model = cache / f"models--{name.replace('/', '--')}"
    with suppress(DoctorError):
        revision = files.text(model / "refs" / "main", "refs/main").strip()
        place = model / "snapshots" / revision
        return place if files.is_there(place / CONFIG) else None
    return None


def _parameters(place: Path) -> int | None:
    """None: its files do not tell it."""
    with suppress(DoctorError):
        rows = files.settings(place / CONFIG, CONFIG)
        config = {one.name: one.value for one in rows}
        if any(name.startswith("quantization_config") for name in config):
            return None
        return _by_weights(place, config) or _by_shapes(config)
    return None


def _by_weights(place: Path, config: Mapping[str, str]) -> int | None:
    each = BYTES.get(config.get("torch_dtype") or config.get("dtype") or "")
    if each is None or not files.is_there(place / INDEX):
        return None
    rows = files.settings(place / INDEX, INDEX)
    total = next((one.value for one in rows if one.name == "metadata.total_size"), "")
    return int(total) // each if re.fullmatch(r"\d{1,15}", total) else None


def _by_shapes(config: Mapping[str, str]) -> int | None:
    kind = config.get("model_type", "")
    known = {key: _first(config, *names) for key, names in NAMES.items()}
    if kind not in GATED | PLAIN or not all(known.values()):
        return None
    width, layers, heads, words = (known[key] or 0 for key in NAMES)
    inner = _first(config, "moe_intermediate_size", "intermediate_size", "n_inner") or 4 * width
    experts = _first(config, "num_local_experts", "num_experts") or 1
    of_head = _first(config, "head_dim") or width // heads
    shared = _first(config, "num_key_value_heads") or heads
    attention = 2 * width * of_head * (heads + shared)
    feedforward = (3 if kind in GATED else 2) * width * inner * experts
    router = width * experts if experts > 1 else 0
    # Base configs tie input and output unless they say otherwise.
    tied = config.get("tie_word_embeddings", "true").lower() == "true"
    return layers * (attention + feedforward + router) + words * width * (1 if tied else 2)


def _first(config: Mapping[str, str], *names: str) -> int | None:
    """The first of these that is a whole number above 0."""
    values = (config.get(name, "") for name in names)
    return next((int(one) for one in values if re.fullmatch(r"[1-9]\d{0,8}", one)), None)
