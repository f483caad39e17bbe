"""Only some ranks call the forward pass of a sharded model, which is a collective of all ranks.

FSDP and ZeRO-3 keep a part of each parameter on each rank, and gather the whole parameter in every
forward and backward pass. So each pass is a collective. A rank may generate fewer tokens than the
others, have no tokens for an expert, or skip a batch. The other ranks then wait for its part, while
it runs on to a different collective. With DDP the same code works as long as there is no backward
pass.

Symptoms: a hang in ``generate``, in a routed layer, or in an evaluation with texts of unequal
length. The waiting ranks have an all-gather of FSDP or DeepSpeed on their stacks, below
``Module.__call__``.

To fix it, call the model equally often on all ranks, or use ``synced_gpus=True`` in ``generate``.
"""

# Above 150 lines: it separates branches, loops and generation, and leaves out those of other
# causes.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

from ddoctor.analysis.hung_run import seen_live
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.live_ranks import (
    LiveRankState,
    asks_for_a_rank,
    at_places,
    named,
    standing,
    way_there,
)
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.script_source import shown
from ddoctor.analysis.sharded_passes import in_a_pass, is_a_pass
from ddoctor.evidence.frames import Block, Frame
from ddoctor.evidence.script import Script
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Severity, Where

EXPLAINS = (
    "uneven-inputs-per-rank",
    "rank-dependent-control-flow",
    "dead-rank",
    "first-failure-masked",
)

GENERATING = "transformers/generation/"
# A rank that leaves another loop early has fewer inputs: uneven-inputs-per-rank.
COUNTS = re.compile(r"^while\b|\brange\((?!.*\blen\()")


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    if not live.blocked:
        return
    parting = live.parting
    if any(_is_another_cause(block, inside) for block, inside in parting.items()):
        return
    found = [block for block, inside in parting.items() if all(map(in_a_pass, inside))]
    if found:
        # A rank that has left a loop has left the blocks around it, too: the loop is the reason.
        block = next((block for block in found if block.loop), found[0])
        yield _finding(block.text.removesuffix(":"), _together(block), parting[block], live)
        return
    # In the loop of transformers that generates tokens.
    inside = [
        rank for rank in live.ranks if any(GENERATING in frame.file for frame in rank.seen.stack)
    ]
    if 0 < len(inside) < len(live.ranks) and all(map(in_a_pass, inside)):
        yield _finding("generate", SYNCED, inside, live)


def in_a_hung_run(run: TrainingRun) -> Iterator[Finding]:
    if (live := seen_live(run)) is not None:
        yield from in_a_live_run(live)


APART = re.compile(r"client|server|llm", re.IGNORECASE)


def generates_on_one_rank(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """One rank alone lets a sharded model generate."""
    if not (plan.strategy.startswith("FSDP") or plan.strategy == "DeepSpeed ZeRO-3"):
        return
    for one in script.of(".generate"):
        # A server, or vLLM, has a copy of the model.
        apart = APART.search(one.on) is not None
        if "one-rank" in one.within and one.branch is not None and not apart:
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=f"only one rank runs {shown(one.at)}, because of {shown(one.branch)}: each "
                f"forward pass of a model under {plan.strategy} gathers the parts of all ranks",
                fixes=(
                    Fix.python(
                        summary="generate on all ranks, and print on one of them",
                        paste=f"{one.at.text}  # on all ranks\nif rank == 0:\n    print(...)",
                        caution="with texts of unequal length, add synced_gpus=True",
                    ),
                ),
            )
            return


def _is_another_cause(block: Block, inside: Sequence[LiveRankState]) -> bool:
    """Whether another check covers it: a branch for one rank, or around another collective, or a
    loop over data, as in training."""
    if not block.loop:
        return asks_for_a_rank(block) or not all(map(in_a_pass, inside))
    return COUNTS.search(block.text) is None and not _of_a_model(block, inside[0].seen.stack)


def _of_a_model(block: Block, stack: Sequence[Frame]) -> bool:
    place = (block.file, block.function)
    outer = takewhile(lambda frame: (frame.file, frame.function) != place, stack)
    return any(map(is_a_pass, outer))


def _finding(what: str, fix: Fix, inside: Sequence[LiveRankState], live: LiveState) -> Finding:
    first, outside = inside[0], [rank for rank in live.ranks if rank not in inside]
    are = "are" if len(outside) > 1 else "is"
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=(
            f"{standing(inside)}, which the sharded model itself calls, inside `{what}`, where "
            f"{named(outside)} {are} not{live.others(inside)}; "
            f"{live.standstill}"
        ),
        evidence=at_places(inside, outside),
        where=Where.of(outside),
        fixes=(fix, *way_there(first)),
    )


def _together(block: Block) -> Fix:
    if block.loop:
        return Fix.python(
            summary="leave the loop together: all ranks iterate until the last one is done",
            paste=(
                "going = torch.tensor(float(not done), device=device)  # in each iteration\n"
                "torch.distributed.all_reduce(going, op=torch.distributed.ReduceOp.MAX)\n"
                "if not going.item():\n"
                "    break\n"
                "output = model(inputs)  # a rank that is done calls it, too, and drops the output"
            ),
            caution="costs a small collective per iteration; a fixed number of them needs none",
        )
    return Fix.python(
        summary="call the model on all ranks, with weight zero on ranks without work",
        paste=(
            f"# instead of `{block.text}`\n"
            "weight = float(has_work)\n"
            "output = output + weight * model(inputs if has_work else placeholder).sum()"
        ),
        caution="the placeholder needs the shape and type of an input, say one row of zeros",
    )


SYNCED = Fix.python(
    summary="let all ranks generate until the last one has finished its text",
    paste="model.generate(…, synced_gpus=True)",
    caution="transformers does so automatically for ZeRO-3 and FSDP1, not after fully_shard",
)
