"""Code that only one rank runs contains a collective, which all ranks must call.

``if rank == 0:`` around an evaluation, a log line or a save looks harmless, until the code inside
calls a collective: the state of a sharded model, a metric over all ranks, a barrier. The rank
inside waits for the other ranks, and they wait for it in the next collective.

Symptoms: a hang at the first evaluation or checkpoint; rank 0 is stuck in one collective, all other
ranks in another.

To fix it, move the collective out of the branch, and write the result on one rank.
"""

# Above 150 lines: live runs, recorded runs, and two mistakes of the source.

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import endings, log_events
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
from ddoctor.analysis.prepared_models import saved_states
from ddoctor.analysis.script_source import is_plain, shown, written
from ddoctor.analysis.sharded_passes import in_a_pass
from ddoctor.evidence.frames import Block
from ddoctor.evidence.log import Log
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Severity, Where

EXPLAINS = ("rank-dependent-control-flow", "dead-rank", "first-failure-masked", "script-error")


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    if not live.blocked:
        return
    for block, inside in live.parting.items():
        # To send or receive is for certain ranks.
        if not asks_for_a_rank(block) or all(rank.exchanges for rank in inside):
            continue
        outside = [rank for rank in live.ranks if rank not in inside]
        first = inside[0]
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.CERTAIN,
            because=(
                f"{standing(inside)}, inside `{block.text}` (line {block.line}), which "
                f"{named(outside)} {'do' if len(outside) > 1 else 'does'} not run; "
                f"{standing(outside)}; {live.standstill}"
            ),
            evidence=at_places(inside, outside),
            where=Where.of(inside),
            fixes=(*_together(block, first), *way_there(first)),
        )


def in_a_hung_run(run: TrainingRun) -> Iterator[Finding]:
    if (live := seen_live(run)) is not None:
        yield from in_a_live_run(live)


def _together(block: Block, inside: LiveRankState) -> Iterator[Fix]:
    if not in_a_pass(inside):
        yield Fix.python(
            summary="call it on all ranks, and write the result on one of them",
            paste="result = gather_or_evaluate()  # on all ranks: "
            f"{inside.operation or 'it'} needs them\n"
            f"{block.text}\n"
            "    save(result)",
        )
        return
    yield Fix.python(
        summary="call the sharded model on all ranks, and write the result on one of them",
        paste="result = evaluate(model)  # on all ranks: each pass gathers the parts of all\n"
        f"{block.text}\n"
        "    print(result)",
        caution="conditions other than the rank stay around both",
    )
    yield Fix.python(
        summary="or gather the weights on all ranks, and evaluate an unsharded copy on one",
        paste="options = StateDictOptions(full_state_dict=True, cpu_offload=True)\n"
        "weights = get_model_state_dict(model, options=options)  # on all ranks\n"
        f"{block.text}\n"
        "    copy.load_state_dict(weights)\n"
        "    evaluate(copy)",
        caution="the others wait for it in their next collective: keep it below the timeout",
    )


def in_a_log(log: Log) -> Iterator[Finding]:
    late = log.of("desync")
    waits = [one for one in log.of("watchdog") if one.rank is not None]
    if late and {one.rank for one in waits} == {0}:
        # Of two ranks, either may have left the way of the other.
        several = len({one.values["late"] for one in late}) > 1
        yield log_events.finding(
            [*waits, *late],
            "rank 0 waits in a collective that no other rank has called",
            _ON_ALL_RANKS,
            confidence=Confidence.LIKELY if several else Confidence.POSSIBLE,
        )
        return
    ahead, behind = log_events.apart(log)
    if [one.rank for one in ahead] == [0] and len(behind) > 1:
        yield log_events.finding(
            [*ahead, *behind],
            f"rank 0 has called collective {ahead[0].values['enqueued']} and waits in it; "
            f"{endings.ranks(one.rank for one in behind if one.rank is not None)} had finished "
            "all that they called",
            _ON_ALL_RANKS,
            at=Where(ranks=(0,)),
        )


_ON_ALL_RANKS = Fix.python(
    summary="call it on all ranks, and let only rank 0 use the result",
    paste="state = get_model_state_dict(model)  # on all ranks\n"
    "if rank == 0:\n    torch.save(state, path)",
)


def in_the_source(script: Script) -> Iterator[Finding]:
    calls = [one for one in script.calls if one.collective is not None]
    for one in calls:
        if one.collective is None or "one-rank" not in one.within:
            continue
        if any(_answers(other, one) for other in calls):
            continue
        inner = f", which calls {shown(one.collective)}" if one.collective != one.at else ""
        branch = one.branch if one.branch is not None else one.at
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=(
                f"only one rank runs {shown(one.at)}{inner}, because of {shown(branch)}; all "
                "ranks must call it, so this rank waits for the others"
            ),
            fixes=(
                Fix.python(
                    summary="call it on all ranks, and write the result on one of them",
                    paste=(
                        f"{written(one)}  # on all ranks\n"
                        "if torch.distributed.get_rank() == 0:\n"
                        "    ...  # print, save"
                    ),
                ),
            ),
        )
        return


def passes_of_one_rank(script: Script) -> Iterator[Finding]:
    """One rank evaluates the wrapped model, which needs the others in each pass."""
    calls = {one.at for one in script.calls if one.collective is not None}
    for line in script.passes_of_one_rank if is_plain(script) else ():
        if line in calls:
            continue  # `in_the_source` names it
        sharded = not script.of("torch.nn.parallel.DistributedDataParallel")
        needs = "gathers the parts of all ranks" if sharded else "sends the buffers of rank 0"
        fix = Fix.python(
            summary="evaluate on all ranks, and write the result on one of them",
            paste=f"{line.text}  # on all ranks, before the test of the rank",
        )
        inner = Fix.python(
            summary="run the model inside DDP on this rank",
            paste="evaluate(model.module, loader)  # sends nothing",
            caution="the others wait for it in their next collective: keep it below the timeout",
        )
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=f"only one rank runs {shown(line)}, and each forward pass of the wrapped "
            f"model {needs}: it waits for the others, or they meet in different collectives",
            fixes=(fix,) if sharded else (inner, fix),
        )
        return


def groups_of_some_ranks(script: Script) -> Iterator[Finding]:
    """Only some ranks make a process group, which all ranks must make, members or not."""
    made = script.of("torch.distributed.new_group", "torch.distributed.new_subgroups")
    for one in made:
        branch, alone = one.branch, one.argument("use_local_synchronization") is not None
        # Where others make one as well, each waits for the other's, or not.
        others = any(other.on_all_ranks or other.branch != branch for other in made)
        if branch is None or alone or others:
            continue
        if len([other for other in made if other.branch == branch]) > 1:
            continue
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=(
                f"only some ranks run {shown(one.at)}, because of {shown(branch)}; all ranks must "
                "make each group in the same order, also those that are no members"
            ),
            fixes=(
                Fix.python(
                    summary="make the group on all ranks, and use it on its members",
                    paste=f"{written(one)}  # on all ranks\n"
                    "if torch.distributed.get_rank() in ranks:\n"
                    "    ...  # collectives with group=group",
                ),
            ),
        )
        return


SAVES = re.compile(r"(?:^|\.)(?:trainer|fabric|(?:model_)?engine)$")
"""Objects whose ``save_checkpoint`` or ``save_model`` waits for all ranks: of Lightning, Fabric,
DeepSpeed and transformers."""

ACCELERATOR = re.compile(r"(?:^|\.)_?accelerator$")


def saved_by_one_rank(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """A framework's method that gathers the parts of all ranks, called by one of them."""
    for one in script.of(*_waiting(plan, script)):
        if "one-rank" in one.within and _is_of_the_framework(one):
            branch = one.branch if one.branch is not None else one.at
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=f"only one rank runs {shown(one.at)}, because of {shown(branch)}: it "
                "collects the parts of all ranks, or waits for them, so it never returns",
                fixes=(
                    Fix.python(
                        summary="call it on all ranks, and write the result on one of them",
                        paste=f"{written(one)}  # before the test of the rank",
                    ),
                ),
            )
            return


def saved_without_the_others(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """The state of a model that accelerate has wrapped by FSDP1, asked for by one rank.

    Source: torch/distributed/fsdp/_state_dict_utils.py: each kind of state gathers first.
    """
    for one, model in saved_states(script) if plan.strategy == "FSDP1" else ():
        if "one-rank" in one.within:
            branch = one.branch if one.branch is not None else one.at
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=f"only one rank runs {shown(one.at)}, because of {shown(branch)}: FSDP1 "
                "gathers the state from all ranks, so it never returns",
                fixes=(
                    Fix.python(
                        summary="gather it on all ranks, and write it on one of them",
                        paste=f"state = accelerator.get_state_dict({model})"
                        "  # before the test of the rank",
                    ),
                ),
            )
            return


def _waiting(plan: LaunchPlan, script: Script) -> Iterator[str]:
    """The methods of the frameworks in use that wait for all ranks."""
    frameworks = {one.framework for one in script.imports}
    if {"Lightning", "DeepSpeed"} & frameworks:
        yield ".save_checkpoint"
    sharded = plan.strategy.startswith("FSDP")
    # transformers/trainer.py, save_model.
    if {"Trainer", "TRL"} & frameworks and (sharded or plan.strategy == "DeepSpeed ZeRO-3"):
        yield ".save_model"
    if "accelerate" not in frameworks | {plan.launch.launcher}:
        return
    if sharded or plan.strategy == "DeepSpeed ZeRO-3":
        yield ".get_state_dict"
    # accelerate/accelerator.py, save_state: DDP's model is saved without a collective, unless
    # accelerate numbers the checkpoints. DeepSpeed's engine waits in each stage of ZeRO.
    if sharded or plan.strategy.startswith("DeepSpeed") or _numbers_checkpoints(script):
        yield ".save_state"


def _is_of_the_framework(call: SourceCall) -> bool:
    """Whether its object is the framework's: others have methods of the same names."""
    if call.name in (".save_checkpoint", ".save_model"):
        return SAVES.search(call.on) is not None
    made = any(one.startswith("accelerate.") for one in call.made_by)
    # transformers' Trainer saves its state on one rank, too.
    return call.name == ".get_state_dict" or made or ACCELERATOR.search(call.on) is not None


def _numbers_checkpoints(script: Script) -> bool:
    return any(one.argument("automatic_checkpoint_naming") == "True" for one in script.calls)


def _answers(other: SourceCall, one: SourceCall) -> bool:
    """Whether another branch of the same function may hold the calls of the other ranks."""
    if (other.at.file, other.at.function) != (one.at.file, one.at.function):
        return False
    elsewhere = {"other-ranks", "some-ranks"} & {*other.within}
    ranks = [call.branch.text if call.branch is not None else "" for call in (one, other)]
    return bool(elsewhere) or ("one-rank" in other.within and ranks[0] != ranks[1])
