"""Activation checkpointing of the wrong kind clashes with the parallel wrapper.

Re-entrant checkpointing computes a block anew inside of its backward, by a backward pass of its
own. Where DDP looks for unused parameters it counts those of the block, which the outer graph does
not show, as unused, and then meets their gradients all the same. Blocks that share parameters clash
likewise. With some set-ups of FSDP it is the other way round: what is computed anew without
re-entrance has other types or shapes than before.

Seen from outside: "Expected to mark a variable ready only once", though one process runs fine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import endings
from ddoctor.analysis.ddp_options import written
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = ("dead-rank", "first-failure-masked")

# torch/csrc/distributed/c10d/reducer.cpp, checkAndRaiseMarkedTwiceError
TWICE = "Expected to mark a variable ready only once"
NAMED = re.compile(r"Parameter at index \d+ with name (\S+) has been marked as ready twice")
NUMBERED = re.compile(r"Parameter at index (\d+)(?! with name)\b")
# torch/utils/checkpoint.py, _CheckpointFrame.check_recomputed_tensors_match
OTHERWISE = "Recomputed values for the following tensors have different metadata"


def with_ddp(run: TrainingRun, wrapping: Wrapping | None) -> Iterator[Finding]:
    raised = [one for one in run.ranks if TWICE in one.message and _recomputes(one)]
    if not raised:
        return
    first = min(raised, key=lambda one: one.time)
    models = wrapping.wrappers if wrapping is not None else ()
    looks = any(one.find_unused_parameters for one in models)
    also = ", while DDP looks for unused parameters" if looks else ""
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"in step {first.steps + 1} a checkpointed block brought the gradient of "
            f"{_parameter(first.message)} to DDP a second time{also}, at "
            f"{endings.place(first.place) or 'backward'}"
        ),
        evidence=(
            Observation(name=f"error of rank {first.rank}", value=TWICE, source="DDP's reducer"),
        ),
        fixes=(
            Fix(
                summary="checkpoint without re-entrance",
                paste="\n".join(_without(run, reentrant=False)),
                language="python",
            ),
            _no_search(run) if looks else _STATIC,
        ),
    )


def with_fsdp(run: TrainingRun, wrapping: Wrapping) -> Iterator[Finding]:
    sharded = any(one.kind.startswith("fsdp") for one in wrapping.wrappers)
    raised = [one for one in run.ranks if OTHERWISE in one.message]
    if not raised or not sharded:
        return
    first = min(raised, key=lambda one: one.time)
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=(
            f"in step {first.steps + 1} a block under FSDP was computed anew with other types or "
            "shapes than in the forward; whether the wrapper changed them, a run with re-entrant "
            "checkpointing settles"
        ),
        evidence=(
            Observation(
                name=f"error of rank {first.rank}",
                value=first.words,
                source="torch.utils.checkpoint",
            ),
        ),
        fixes=(
            Fix(
                summary="checkpoint inside of what FSDP wraps, or with re-entrance",
                paste="\n".join(_without(run, reentrant=True)),
                language="python",
            ),
        ),
    )


def _no_search(run: TrainingRun) -> Fix:
    return Fix(
        summary="or do not look for unused parameters, where there are none",
        paste=written("find_unused_parameters", False, run),
        language="python",
        caution="where a parameter is left out of a step after all, DDP stops in the next",
        settings=("ddp.find_unused_parameters=false",),
    )


_STATIC = Fix(
    summary="or, where the same graph is built in every step, say so to DDP",
    paste="model = DistributedDataParallel(model, ..., static_graph=True)",
    language="python",
    caution="no branches, and no parameters that are unused in some steps only",
    settings=("ddp.static_graph=true",),
)


def _recomputes(one: RankEnding) -> bool:
    """Whether it failed while a block was computed anew."""
    return any("utils/checkpoint" in frame.file for frame in one.stack)


def _parameter(message: str) -> str:
    if found := NAMED.search(message):
        return found[1]
    found = NUMBERED.search(message)
    return f"parameter number {found[1]}" if found else "a parameter"


def _without(run: TrainingRun, *, reentrant: bool) -> Iterator[str]:
    yield f"torch.utils.checkpoint.checkpoint(block, x, use_reentrant={reentrant})"
    if "transformers" in run.framework:
        yield "# transformers: TrainingArguments(..., gradient_checkpointing=True,"
        yield f'#     gradient_checkpointing_kwargs={{"use_reentrant": {reentrant}}})'
