"""How many parameters a model has by its name, such as ``deepseek-coder-33b-base``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddoctor.analysis.describe import GIB
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.evidence.launch import Setting
from ddoctor.evidence.script import UNKNOWN, Script, SourceCall

# Names in transformers, diffusers, safetensors and torch.
OF_MODELS = re.compile(r"(?:AutoModel\w*|For[A-Z]\w+|Model)\.from_pretrained$")
OF_LAUNCHES = ("model", "model_name", "model_name_or_path", "model_path", "model_id", "base_model")
"""What scripts call the argument that names the model."""
OF_HUB = re.compile(r"[\w.-]+/[\w.-]+")
SIZE = re.compile(r"(?:^|[-_/'\"])(\d{1,4}(?:\.\d{1,2})?)[bB](?:[-_./'\"]|$)")
"""Thousands of millions of parameters."""
HALVES = re.compile("float16|fp16|half|auto|bf16")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}


@dataclass(frozen=True, kw_only=True)
class NamedModel:
    """A model that a script loads by a name with its size."""

    call: SourceCall
    billions: float
    halves: bool
    """Whether it is loaded in 16 bits."""

    @property
    def nbytes(self) -> float:
        """Bytes of its weights, as they are loaded."""
        return self.billions * 1e9 * (2 if self.halves else 4)


def named_models(plan: LaunchPlan, script: Script) -> Iterator[NamedModel]:
    """The models that a script loads on all of its ranks."""
    for one in script.calls:
        found = SIZE.search(" ".join(_names(one, plan))) if OF_MODELS.search(one.name) else None
        if found is not None and one.on_all_ranks and "device_map" not in one.keywords:
            halves = HALVES.search(" ".join(one.keywords.values())) is not None
            yield NamedModel(call=one, billions=float(found[1]), halves=halves)


def _names(call: SourceCall, plan: LaunchPlan) -> Iterator[str]:
    """What may name the model: the argument, what it is assigned from, and its value."""
    yield from (*call.arguments[:1], call.values.get("0", ""), *call.origin("0", 0))
    given = (one.rpartition(".")[2] for one in call.arguments[:1])
    names = (*given, *OF_LAUNCHES) if call.origin("0", 0) == (UNKNOWN,) else ()
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
