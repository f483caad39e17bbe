"""How many parameters a model has: by its files, or by its name, as ``deepseek-coder-33b-base``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ddoctor.analysis.describe import GIB
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.launch import COUNTED, Setting
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import UNKNOWN, SourceCall

# Names in transformers, diffusers, safetensors and torch.
OF_MODELS = re.compile(r"(?:AutoModel\w*|For[A-Z]\w+|Model)\.from_pretrained$")
OF_LAUNCHES = ("model", "model_name", "model_name_or_path", "model_path", "model_id", "base_model")
"""What scripts call the argument that names the model."""
NAME = "pretrained_model_name_or_path"
TRAINERS = ("trl", "llamafactory-cli")
"""Programs that train the one model that their arguments name."""
OF_TRAINERS = re.compile(r"trl\.\w{1,12}Trainer")
OF_HUB = re.compile(r"[\w.-]+/[\w.-]+")
SIZE = re.compile(r"(?:^|[-_/'\"])(\d{1,4}(?:\.\d{1,2})?)[bB](?:[-_./'\"]|$)")
"""Thousands of millions of parameters."""
HALVES = re.compile("float16|fp16|half|auto|bf16")
DTYPES = ("arg.torch_dtype", "arg.dtype", "arg.model_dtype")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}


@dataclass(frozen=True, kw_only=True)
class NamedModel:
    """A model of a known size that every rank loads."""

    place: str
    """The line, or the option, that names it."""
    billions: float
    halves: bool
    """Whether it is loaded in 16 bits."""
    at_least: bool = False
    """Whether it may have more, in layers of unknown sizes."""

    @property
    def nbytes(self) -> float:
        """Bytes of its weights, as they are loaded."""
        return self.billions * 1e9 * (2 if self.halves else 4)

    @property
    def size(self) -> str:
        """Its parameters in words."""
        least = "at least " * self.at_least
        return f"{least}{float(f'{self.billions:.3g}'):g} billion parameters"


def named_models(plan: LaunchPlan, script: Script | None) -> Iterator[NamedModel]:
    """The models that a script, or a program that trains one, loads on all of its ranks."""
    for one in script.calls if script is not None else ():
        billions = _billions(names_of(one, plan), plan) if OF_MODELS.search(one.name) else None
        if billions and one.on_all_ranks and "device_map" not in one.keywords:
            halves = HALVES.search(" ".join(one.keywords.values())) is not None
            yield NamedModel(place=shown(one.at), billions=billions, halves=halves)
    if plan.launch.script in TRAINERS or (script is not None and _by_name(script)):
        named = plan.get(*(f"arg.{name}" for name in OF_LAUNCHES))
        billions = _billions([named.value], plan) if named is not None else None
        if named is not None and billions:
            dtype = plan.get(*DTYPES)
            halves = dtype is not None and HALVES.search(dtype.value) is not None
            place = f"{named.value} ({named.at})"
            yield NamedModel(place=place, billions=billions, halves=halves)


def _by_name(script: Script) -> bool:
    """Whether TRL's trainer loads the model itself, by the name that an argument has."""
    trainers = [one for one in script.calls if OF_TRAINERS.fullmatch(one.name)]
    given = [one.argument("model", 0) or "" for one in trainers]
    return bool(given) and all(text.rpartition(".")[2] in OF_LAUNCHES[1:] for text in given)


def _billions(names: Iterable[str], plan: LaunchPlan) -> float | None:
    """By the files of a model, else by a name; None: neither tells it."""
    every = [*names]
    for name in every:
        if (counted := plan.launch.get(COUNTED + name.strip("'\""))) is not None:
            return int(counted.value) / 1e9
    found = SIZE.search(" ".join(every))
    return float(found[1]) if found is not None else None


def names_of(call: SourceCall, plan: LaunchPlan) -> Iterator[str]:
    """What may name the model: the argument, what it is assigned from, and its value."""
    written, origin = call.argument(NAME, 0) or "", call.origin(NAME, 0)
    yield from (written, call.values.get("0", ""), *origin)
    names = (written.rpartition(".")[2], *OF_LAUNCHES) if origin == (UNKNOWN,) else ()
    for name in names:
        setting = plan.launch.get(f"arg.{name}")
        if setting is not None:
            yield setting.value
    if names:
        # The name of a model by the option of any name: `meta-llama/Llama-3.1-70B`.
        options = (one.value for one in plan.launch.settings if one.name.startswith("arg."))
        yield from (value for value in options if OF_HUB.fullmatch(value))


def memory(setting: Setting | None) -> float | None:
    """The GiB that a scheduler grants; None: not known, or all of the host.

    Slurm counts in MiB where no unit is given, Kubernetes in bytes.
    """
    if setting is None:
        return None
    match = re.fullmatch(r"(\d{1,12})([KMGTP]?)i?[Bb]?", setting.value)
    if match is None or not int(match[1]):
        return None
    plain = 1 if setting.file.endswith((".yaml", ".yml")) else 2**20
    return int(match[1]) * UNITS.get(match[2], plain) / GIB
