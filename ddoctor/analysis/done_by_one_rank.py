"""What the source lets one rank alone do to its replica: steps, rates, clipping, weights."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.script_source import shown, written
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.models import Confidence, Finding, Fix, Severity

BROADCASTS = ("torch.distributed.broadcast", "torch.distributed.broadcast_object_list")
DDP = "torch.nn.parallel.DistributedDataParallel"
OPTIMIZER = re.compile(r"torch\.optim\.(?!lr_scheduler)")
SCHEDULER = re.compile(r"torch\.optim\.lr_scheduler\.|transformers\.get_\w*schedule")
CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_")


def done_by_one_rank(script: Script) -> Iterator[Finding]:
    """One finding at most; none where a line sends what rank 0 has to the others."""
    if script.unseen or script.of(*BROADCASTS):
        return
    wrapped = {one.assigned: one for one in script.of(DDP)}
    for one in script.calls:
        effect = (_in_the_loop(one) and _effect(one)) or _loads_into(one, wrapped)
        if effect and "one-rank" in one.within and not _depends(one):
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.at)} is for one rank alone: {effect}",
                fixes=(
                    Fix.python(
                        summary="do it on each rank, outside of the test of the rank",
                        paste=f"{written(one)}  # on all ranks",
                    ),
                ),
            )
            return


def _depends(one: SourceCall) -> bool:
    """Whether anything else decides, such as an option that is off in a distributed run."""
    return bool(one.unless) or "condition" in one.within[one.within.index("one-rank") :]


def _in_the_loop(one: SourceCall) -> bool:
    """Whether all ranks run the loop around it."""
    loops = [at for at, kind in enumerate(one.within) if kind in ("epoch", "training")]
    return bool(loops) and "one-rank" in one.within[loops[0] :]


def _effect(one: SourceCall) -> str:
    """What the ranks do not have in common then; empty: nothing is known to differ."""
    if one.name == ".step" and any(map(OPTIMIZER.match, one.made_by)):
        return (
            "DDP gives all ranks the same gradients, but the others keep the weights that they had"
        )
    if one.name == ".step" and any(map(SCHEDULER.match, one.made_by)):
        return "the others keep the learning rate that they had, and make other steps"
    if one.name in CLIPS:
        return "the others make steps by gradients that are not clipped"
    return ""


def _loads_into(one: SourceCall, wrapped: dict[str, SourceCall]) -> str:
    wrap = wrapped.get(one.on.removesuffix(".module"))
    if one.name != ".load_state_dict" or wrap is None or not wrap.on_all_ranks:
        return ""
    places = [(call.at.file, call.at.function) for call in (one, wrap)]
    after = places[0] == places[1] and one.at.line > wrap.at.line
    return (
        f"DDP sends the weights of rank 0 once, at {wrap.at.place}, and the others keep those"
        if after
        else ""
    )
