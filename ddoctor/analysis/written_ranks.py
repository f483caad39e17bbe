"""The number of ranks that a script writes down, against the number that a launch starts."""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.script_source import option, shown
from ddoctor.analysis.source_options import in_launch
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

JOIN = "torch.distributed.init_process_group"
SPAWN = "torch.multiprocessing.spawn"
BY_TASKS = frozenset({"srun", "mpirun", "mpiexec"})


def written_ranks(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """A world size that is not the number of ranks, or ranks that each start others."""
    starts_ranks = plan.launch.launcher not in ("python", "ray", "lightning")
    if not starts_ranks and not BY_TASKS & {*plan.launch.around}:
        return
    joins = [one for one in script.of(JOIN) if _always(one)]
    spawns = [one for one in script.of(SPAWN) if _always(one)]
    if spawns and script.of(JOIN):
        yield from _spawned_in_each(plan, spawns[0])
    elif not script.of(SPAWN):
        found = [*_another_world(plan, script, joins)]
        yield from found or _another_number(plan, script)


def _always(call: SourceCall) -> bool:
    return call.always and call.on_all_ranks and not call.unless


def _another_world(plan: LaunchPlan, script: Script, joins: list[SourceCall]) -> Iterator[Finding]:
    ranks = plan.ranks
    known = ((one, world_of(one, script, plan.launch)) for one in joins)
    sizes = [(one, size) for one, size in known if size is not None]
    if ranks is None or len(sizes) != 1 or sizes[0][1] == ranks:
        return
    call, size = sizes[0]
    more = f"those from rank {size} on have no place in it"
    outcome = "it waits for processes that nothing starts" if size > ranks else more
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=f"{shown(call.at)} joins a world of {size} ranks, and the launch starts {ranks}: "
        f"{outcome}",
        evidence=(
            Observation(name="world size", value=size, expected=ranks, source=call.at.place),
        ),
        fixes=(
            Fix.python(
                summary="take the number from the launch",
                paste="torch.distributed.init_process_group()  # torchrun sets WORLD_SIZE",
            ),
        ),
    )


def _another_number(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """What shares the data out by another number of ranks than the launch starts."""
    ranks = plan.ranks
    if ranks is None or any((one.number or 1) > 1 for one in plan.degrees.values()):
        return
    for one in script.told_ranks:
        setting, value = (
            in_launch(one.option, one.given, plan.launch) if one.option else (None, one.given)
        )
        if value is None or not value.isdigit() or int(value) in (0, ranks):
            continue
        count = int(value)
        where = f", {one.option} ({setting.at})" if setting is not None else ""
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{shown(one.at)} takes {count} for the number of ranks{where}, and the launch "
            f"starts {ranks}: "
            + (
                "several ranks get the same part, or none"
                if count < ranks
                else f"what is for the ranks from {ranks} on, no rank gets"
            ),
            evidence=(
                Observation(
                    name="number of ranks",
                    value=count,
                    expected=ranks,
                    source=setting.at if setting is not None else one.at.place,
                ),
            ),
            fixes=(
                Fix.python(
                    summary="take the number from the process group",
                    paste="torch.distributed.get_world_size()",
                ),
            ),
        )
        return


def world_of(call: SourceCall, script: Script, launch: Launch) -> int | None:
    """The world size that a call is given, where it is a constant or a known option."""
    made = call.origin("world_size", 3)
    if len(made) == 1 and made[0].isdigit():
        return int(made[0])
    known = option(call.argument("world_size", 3) or "", script, launch)
    return known.number if known is not None else None


def _spawned_in_each(plan: LaunchPlan, spawn: SourceCall) -> Iterator[Finding]:
    each, count = plan.each, plan.launch.written(spawn.argument("nprocs", 2) or "")
    granted = plan.gpus_per_host
    # Each task may start the ranks for a part of its host's GPUs.
    fits = count and each and granted is not None and each * count <= (granted.number or 0)
    if each is None or each < 2 or count == 1 or fits:
        return
    tasks = (one for one in reversed(plan.launch.around) if one in BY_TASKS)
    by = next(tasks, "") if plan.launch.launcher == "python" else plan.launch.launcher
    total = f": {each * count} processes on a host" if count else ""
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=f"{by} starts {each} ranks on a host, and each of them starts "
        f"{count or 'several'} more at {shown(spawn.at)}{total}",
        evidence=(Observation(name="ranks on a host", value=each, expected=1),),
        fixes=(
            Fix(
                summary="let one of both start the ranks",
                paste=f"python {plan.launch.script}  # the script starts its ranks itself",
                caution="or call the training function directly, and keep the launcher",
            ),
        ),
    )
