"""Reads a script's model from a bundle of `ddoctor run`, as numbers for the closed form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ddoctor.errors import DoctorError
from ddoctor.evidence import bundle as bundles
from ddoctor.evidence.memory_headroom import MemoryHeadroom
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import RankUse, TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.forecast.closed_form import USUAL_LAYERS, Model, Optimizer, Precision

# Dtypes of parameters and of autocast, as torch names them.
PRECISIONS: Mapping[tuple[str, str], Precision] = {
    ("float32", ""): "fp32",
    ("float32", "bfloat16"): "bf16-mixed",
    ("float32", "float16"): "fp16-mixed",
    ("bfloat16", ""): "bf16",
    ("bfloat16", "bfloat16"): "bf16",
}
OPTIMIZERS: Mapping[str, Optimizer] = {
    "Adam": "adamw",
    "AdamW": "adamw",
    "Adam8bit": "adamw-8bit",
    "AdamW8bit": "adamw-8bit",
    "SGD": "sgd",
    "Adafactor": "adafactor",
}

Kind = TypeVar("Kind", Precision, Optimizer)


def read(
    paths: Sequence[Path],
    micro_batch: int | None,
    precision: Precision | None,
    optimizer: Optimizer | None,
) -> Model:
    """Return rank 0's model, with the given options; activations if `run --memory` measured them.

    Raises:
        DoctorError: there is no model in it, or one that cannot be planned from numbers.
    """
    name = " and ".join(map(str, paths))
    evidence = bundles.read_all(list(paths))
    found = [one for section in evidence.all(Wrapping) for one in section.wrappers]
    own = [one for one in found if one.rank == found[0].rank]
    if not own or any(one.kind == "fsdp1" for one in own):
        why = "FSDP1 reports only its shards" if own else "it has no model"
        raise DoctorError(
            f"{name}: {why}: describe the model with --model CONFIG, --workload "
            "package.module:factory, or --params 4.4B"
        )
    parameters = sum(one.parameters for one in own)
    trained = sum(one.trainable_bytes for one in own) / sum(one.parameter_bytes for one in own)
    largest = max(own, key=lambda one: one.parameters)
    repeats = largest.blocks is not None and largest.blocks > 1
    return Model(
        name=" and ".join(dict.fromkeys(one.name for one in own)),
        parameters=parameters,
        trainable=parameters * trained,
        precision=_demanded(name, precision or precision_of(evidence), "precision"),
        optimizer=_demanded(name, optimizer or optimizer_of(evidence), "optimizer"),
        activations=_activations(evidence, micro_batch),
        layers=(largest.blocks or USUAL_LAYERS) if repeats else USUAL_LAYERS,
        blocks=(largest.block,) if repeats else (),
    )


def precision_of(evidence: Evidence) -> Precision | None:
    """Return the precision in which all ranks train; None: not recorded."""
    flags = [one for section in evidence.all(RankUse) for one in section.flags]
    told = {(one.parameter_dtype, one.autocast) for one in flags}
    return PRECISIONS.get(told.pop()) if len(told) == 1 else None


def optimizer_of(evidence: Evidence) -> Optimizer | None:
    """Return the optimizer by its states; None: not known, or there are several."""
    told = {OPTIMIZERS.get(one) for run in evidence.all(TrainingRun) for one in run.optimizers}
    return told.pop() if len(told) == 1 else None


def _demanded(name: str, told: Kind | None, option: str) -> Kind:
    if told is None:
        raise DoctorError(f"{name} does not record the {option}: pass --{option}")
    return told


def _activations(evidence: Evidence, micro_batch: int | None) -> int:
    """Return bytes of activations of a micro-batch; 0: not known."""
    for sweep in evidence.all(MemoryHeadroom):
        samples = micro_batch or sweep.current
        each = sweep.tightest.per_sample
        if samples is not None and each is not None:
            return samples * each
    return 0
