"""Some ranks only call the forward pass of a sharded model, which gathers its parameters from all.

FSDP and ZeRO-3 keep a part of each parameter on each rank, and gather the whole of it in every
forward and backward pass. So each of these is a collective: a rank that generates fewer tokens than
the others, has nothing for an expert, or skips a batch leaves the others waiting for its part,
until it comes to a collective of its own, which is another one. With DDP the same code works as
long as there is no backward pass.

Seen from outside: a hang in ``generate``, in a routed layer, in an evaluation with texts of unequal
length; the ranks that wait have FSDP's or DeepSpeed's all-gather on their stacks, below
``Module.__call__``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

from ddoctor.analysis.live_ranks import (
    DISTRIBUTED,
    LiveRankState,
    asks_for_a_rank,
    named,
    others,
    way_there,
)
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.live import Block
from ddoctor.evidence.training import Frame
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "uneven-inputs-per-rank",
    "rank-dependent-control-flow",
    "dead-rank",
    "first-failure-masked",
)

# Met on torch 2.13 (FSDP1, FSDP2); of DeepSpeed by the folder that ZeRO is in.
SHARDING = ("torch/distributed/fsdp/", "deepspeed/runtime/zero/")
CALLS_COLLECTIVES = (DISTRIBUTED, "deepspeed/")
# FSDP gathers elsewhere, too, say for a checkpoint.
PASSES = ("_call_impl", "_engine_run_backward")
GENERATING = "transformers/generation/"
# Whoever leaves another loop early has less of what it goes through: uneven-inputs-per-rank.
COUNTS = re.compile(r"^while\b|\brange\((?!.*\blen\()")


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    if not live.blocked:
        return
    blocks = dict.fromkeys(block for rank in live.ranks for block in rank.within)
    parting = {
        block: inside
        for block in blocks
        if 0 < len(inside := _in(block, live.ranks)) < len(live.ranks)
    }
    if any(_is_another_cause(block, inside) for block, inside in parting.items()):
        return
    told = [block for block, inside in parting.items() if all(map(_in_a_pass, inside))]
    if told:
        # Who has left a loop has left what is around it, too, and was not kept out by that.
        block = next((block for block in told if block.loop), told[0])
        yield _finding(block.text.removesuffix(":"), _together(block), parting[block], live.ranks)
        return
    inside = [rank for rank in live.ranks if _generates(rank)]
    if 0 < len(inside) < len(live.ranks) and all(map(_in_a_pass, inside)):
        yield _finding("generate", _synced(), inside, live.ranks)


def _in(block: Block, every: Sequence[LiveRankState]) -> Sequence[LiveRankState]:
    return [rank for rank in every if block in rank.within]


def _is_another_cause(block: Block, inside: Sequence[LiveRankState]) -> bool:
    """Whether it is a branch for one rank, or with a collective of its own, or a loop through data,
    as those of the training are and those in a model are not."""
    if not block.loop:
        return asks_for_a_rank(block) or not all(map(_in_a_pass, inside))
    return COUNTS.search(block.text) is None and not _of_a_model(block, inside[0].seen.stack)


def _of_a_model(block: Block, stack: Sequence[Frame]) -> bool:
    place = (block.file, block.function)
    outer = takewhile(lambda frame: (frame.file, frame.function) != place, stack)
    return any(map(_is_a_pass, outer))


def _in_a_pass(rank: LiveRankState) -> bool:
    """Whether it waits in a collective that a sharded model itself calls, as it is used."""

    def calls(frame: Frame) -> bool:
        return any(part in frame.file for part in CALLS_COLLECTIVES)

    callers = takewhile(calls, reversed(rank.seen.stack))
    sharding = any(part in frame.file for frame in callers for part in SHARDING)
    return sharding and any(map(_is_a_pass, rank.seen.stack))


def _is_a_pass(frame: Frame) -> bool:
    return frame.function.rpartition(".")[2] in PASSES


def _generates(rank: LiveRankState) -> bool:
    """Whether it is in the loop of transformers that makes one token after the other."""
    return any(GENERATING in frame.file for frame in rank.seen.stack)


def _finding(
    what: str, fix: Fix, inside: Sequence[LiveRankState], every: Sequence[LiveRankState]
) -> Finding:
    first, outside = inside[0], [rank for rank in every if rank not in inside]
    wait = "wait" if len(inside) > 1 else "waits"
    are = "are" if len(outside) > 1 else "is"
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=(
            f"{named(inside)} {wait} {first.where}, which the sharded model itself calls, "
            f"within `{what}`, where {named(outside)} {are} not{others(every, inside)}; nothing "
            f"moved for {first.seconds:.0f} s"
        ),
        evidence=(
            Observation(name=named(inside), value=first.where),
            Observation(name=named(outside), value=outside[0].where),
        ),
        where=Where.of(outside),
        fixes=(fix, *way_there(first)),
    )


def _together(block: Block) -> Fix:
    if block.loop:
        return Fix(
            summary="leave the loop together: as long as one rank needs a turn, all take it",
            paste=(
                "going = torch.tensor(float(not done), device=device)  # in each turn\n"
                "torch.distributed.all_reduce(going, op=torch.distributed.ReduceOp.MAX)\n"
                "if not going.item():\n"
                "    break\n"
                "output = model(inputs)  # who is done calls it, too, and drops the output"
            ),
            language="python",
            caution="one small collective a turn; a number of turns that is fixed needs none",
        )
    return Fix(
        summary="call the model on all ranks, with a weight of zero where there is nothing for it",
        paste=(
            f"# in place of `{block.text}`\n"
            "weight = float(has_work)\n"
            "output = output + weight * model(inputs if has_work else placeholder).sum()"
        ),
        language="python",
        caution="the placeholder has the shape and type of an input, say zeros of one row",
    )


def _synced() -> Fix:
    return Fix(
        summary="let all ranks go on until the last has come to the end of its text",
        paste="model.generate(…, synced_gpus=True)",
        language="python",
        caution="transformers does so by itself for ZeRO-3 and FSDP1, not after fully_shard",
    )
