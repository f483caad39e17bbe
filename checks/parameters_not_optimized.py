"""A part of the model gets gradients, and no optimizer has it, so it keeps its first weights.

Groups of parameters that are picked by their names easily miss some. In DDP all names begin with
``module.``, in a compiled model with ``_orig_mod.``, so that ``name.startswith("encoder.")`` finds
nothing. Layers that are added after the optimizer was made are missed as well. Their gradients are
computed, averaged over the ranks, and never used.

Symptoms: no error; the model learns, but worse than it should.

To fix it, give the optimizer all parameters, or freeze what is not to be trained.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.describe import few
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.script import Script
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Confidence, Finding, Fix, Severity

EXPLAINS = ("gradients-discarded",)
MOST_NAMED = 3
SETS = "sets an attribute of a module, which its parameters do not see"


def found(wrapping: Wrapping, script: Script | None) -> Iterator[Finding]:
    in_vain = script.frozen_in_vain if script is not None else ()
    meant = bool(in_vain) or (script is not None and bool(script.teachers))
    ranks = {one.rank for one in wrapping.wrappers}
    for models in wrapping.by_name(lambda one: one.untrained):
        if {one.rank for one in models} != ranks:
            continue
        one = min(models, key=lambda model: len(model.untrained))
        names = few(one.untrained, MOST_NAMED)
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"{len(one.untrained)} parameters of {one.name} get gradients in each step, but no "
                f"optimizer has them, and their values do not change: {names}"
                + (f"; {shown(in_vain[0])} {SETS}" if in_vain else "")
            ),
            fixes=(
                *((_frozen(),) if meant else ()),
                Fix.python(
                    summary="give the optimizer all parameters, and check that none is missing",
                    paste=(
                        "groups = [{'params': encoder, 'lr': 1e-5}, {'params': others}]\n"
                        "optimizer = torch.optim.AdamW(groups, lr=1e-4)\n"
                        "wanted = sum(p.requires_grad for p in model.parameters())\n"
                        "assert sum(len(g['params']) for g in optimizer.param_groups) == wanted"
                    ),
                    caution=_of_wrapped(one),
                ),
                *(() if meant else (_frozen("or "),)),
            ),
        )


def frozen_in_vain(script: Script, wrapping: Wrapping | None) -> Iterator[Finding]:
    """The script freezes modules by an attribute that none of their parameters has."""
    if _is_seen(wrapping):
        return
    for line in script.frozen_in_vain[:1]:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            title="A module is frozen by an attribute that its parameters do not have",
            because=f"{shown(line)} {SETS}: their gradients are still computed, and sent",
            fixes=(_frozen(),),
        )


def _is_seen(wrapping: Wrapping | None) -> bool:
    """Whether a recorded run shows such parameters."""
    return wrapping is not None and any(one.untrained for one in wrapping.wrappers)


def _frozen(before: str = "") -> Fix:
    return Fix.python(
        summary=f"{before}freeze what is not to be trained, before the model is wrapped",
        paste="model.encoder.requires_grad_(False)",
        caution="then no gradients are computed and sent for it",
    )


def in_the_source(script: Script, wrapping: Wrapping | None) -> Iterator[Finding]:
    """Of a later stage of the training as well, which no recorded step may have reached."""
    if _is_seen(wrapping):
        return
    for one in script.replaced_layers[:1]:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{shown(one.at)} replaces a layer after {shown(one.optimizer)} has got the "
            "parameters, and no line gives it those of the new one",
            fixes=(
                Fix.python(
                    summary="make the optimizer again after the layer is replaced",
                    paste="model.head = torch.nn.Linear(width, classes)\n"
                    "model = DistributedDataParallel(model)\n"
                    "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)",
                ),
                Fix.python(
                    summary="or add the new parameters to it",
                    paste="optimizer.add_param_group({'params': model.head.parameters()})",
                ),
            ),
        )


def _of_wrapped(one: Wrapper) -> str:
    names = 'names of a model in DDP begin with "module.": pick groups before it is wrapped'
    return names if one.kind == "ddp" else ""
