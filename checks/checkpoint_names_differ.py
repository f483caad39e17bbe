"""The tensors of a checkpoint have other names than those of the model.

A checkpoint of a model inside DDP has ``module.`` before each name, one of a compiled model
``_orig_mod.``. Loaded into a bare model, no name fits. By default that is an error. With
``strict=False`` nothing is loaded and nothing is reported: training begins with random weights.

Symptoms: "Missing key(s) in state_dict", "Unexpected key(s) in state_dict"; or no error, and after
a resume the loss is as high as at the very beginning.

To fix it, save and load the inner model, or remove the prefix, and load with ``strict=True``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import endings
from ddoctor.evidence.training import NotLoaded, RankUse
from ddoctor.models import Confidence, Finding, Fix, Severity, Where

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")


def found(use: RankUse) -> Iterator[Finding]:
    ranks = {flags.rank: flags.not_loaded for flags in use.flags if flags.not_loaded is not None}
    if not ranks:
        return
    one = ranks[min(ranks)]
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        title="A checkpoint was loaded with strict=False, and the model took none of its tensors",
        because=(
            f"{endings.ranks(ranks, every=use.flags)} loaded a state of {one.entries} tensors"
            f"{endings.at(one.at)}{endings.quoted(one.at)}, and the model has none of these names: "
            f"the state has {one.has}, the model {one.lacks}"
        ),
        where=Where(ranks=() if len(ranks) == len(use.flags) else tuple(sorted(ranks))),
        fixes=(_fix(one),),
    )


def _fix(one: NotLoaded) -> Fix:
    if one.has.endswith(f".{one.lacks}"):
        prefix = one.has.removesuffix(one.lacks)
        return Fix.python(
            summary="remove the prefix of the names, and let missing ones be an error",
            paste="from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present\n"
            f'consume_prefix_in_state_dict_if_present(state, "{prefix}")\n'
            "model.load_state_dict(state)  # strict",
            caution="or save model.module.state_dict() without the prefix",
        )
    if one.lacks.endswith(f".{one.has}"):
        inner = one.lacks.removesuffix(f".{one.has}")
        return Fix.python(
            summary="load it into the inner model, and let missing names be an error",
            paste=f"model.{inner}.load_state_dict(state)  # strict",
        )
    return Fix.python(
        summary="let missing names be an error, and load the state of this model",
        paste="model.load_state_dict(state)  # strict",
    )
