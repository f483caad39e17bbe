"""accelerate steps a prepared scheduler once per rank, so the schedule ends too early.

Each call of ``step`` on a scheduler that ``accelerator.prepare`` returned steps the original one
``num_processes`` times. This fits a schedule that is counted in the batches of all ranks, such as
``len(loader)`` before ``prepare``. A schedule over a fixed number of optimizer steps, or over
epochs, ends after that number divided by the number of ranks.

Symptoms: the learning rate reaches its end after a part of the training, the earlier the more ranks
there are; the warm-up is as much shorter.

To fix it, multiply the numbers of the schedule by ``accelerator.num_processes``, or create
``Accelerator(step_scheduler_with_optimizer=False)``.
"""

# Above 150 lines: schedules of one rank, fixed ones, and those that an old accelerate oversteps.

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.script_source import shown, targets
from ddoctor.analysis.versions import version
from ddoctor.evidence.known_software import within
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.evidence.script import Script
from ddoctor.evidence.software import Software
from ddoctor.evidence.source_lines import SourceCall, SourceLine
from ddoctor.models import Confidence, Finding, Fix, Severity

# Of torch, transformers and diffusers: the argument with the steps of the schedule, and its place.
OF_TORCH = {"OneCycleLR": ("total_steps", 2), "CosineAnnealingLR": ("T_max", 1)}
SCHEDULE = ("num_training_steps", 2)
GET_SCHEDULER = ("num_training_steps", 3)
SCHEDULER = re.compile(r"sched", re.IGNORECASE)
SWITCHES = ("split_batches", "step_scheduler_with_optimizer", "dataloader_config", "**")
"""Arguments of Accelerator that may change how often it steps a scheduler."""


def in_a_live_run(live: LiveState, script: Script) -> Iterator[Finding]:
    if live.world > 1 and _steps_for_all(script):
        yield from _of_one_rank(script, live.world)


def in_the_source(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    ranks = plan.ranks
    if ranks is None or ranks < 2 or not _steps_for_all(script):
        return
    found = [*_of_one_rank(script, ranks)]
    yield from found
    prepared = {name for one in script.of(".prepare") for name in one.arguments}
    for made in script.calls if not found else ():
        if made.assigned not in prepared or not _is_scheduler(made):
            continue
        steps = [one for one in script.of(".step") if one.on in _names(made, script)]
        counted = _fixed(made, plan)
        of_epochs = [one for one in steps if one.within and one.within[-1] == "epoch"]
        if of_epochs:
            yield _finding(
                made.at,
                f"{shown(of_epochs[0].at)} steps the scheduler once an epoch, and accelerate makes "
                f"{ranks} steps of it, one per rank: {shown(made.at)} is {ranks} times as fast",
                Confidence.LIKELY,
            )
            return
        if counted is not None and any(one.in_each_step for one in steps):
            yield _finding(
                made.at,
                f"{shown(made.at)} has {counted.number:,} steps ({counted.at}), and each step of "
                f"the training makes {ranks} of them, one per rank; right only if that number "
                "counts the batches of all ranks",
                Confidence.POSSIBLE,
            )
            return


def _steps_for_all(script: Script) -> bool:
    """Whether accelerate makes as many steps of a scheduler as there are ranks."""
    own = script.of("accelerate.Accelerator")
    return bool(own) and not any(name in one.keywords for one in own for name in SWITCHES)


def past_the_end(
    plan: LaunchPlan, script: Script, launch: Launch, software: Software | None
) -> Iterator[Finding]:
    """Before 0.15, accelerate did not stop at the last step of OneCycleLR, which then raises.

    The loop makes as many steps for each batch as there are ranks, also for the last one, which few
    ranks may share (accelerate/scheduler.py of 0.14 and 0.15, ``AcceleratedScheduler.step``).
    """
    installed, ranks = version("accelerate", launch, software), plan.ranks
    if installed is None or ranks is None or ranks < 2 or not within(installed.value, "<0.15"):
        return
    prepared = {name for one in script.of(".prepare") for name in one.arguments}
    for made in script.of("torch.optim.lr_scheduler.OneCycleLR"):
        stepped = [one for one in script.of(".step") if one.on in _names(made, script)]
        if made.assigned in prepared and any(one.in_each_step for one in stepped):
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.POSSIBLE,
                because=f"accelerate {installed.value} ({installed.at}) makes {ranks} steps of "
                f"{shown(made.at)} for each batch, also at its end: OneCycleLR raises an error "
                f"there unless the batches divide by {ranks}",
                fixes=(Fix(summary="use a fixed release", paste="pip install 'accelerate>=0.15'"),),
            )
            return


def _names(made: SourceCall, script: Script) -> tuple[str, ...]:
    """The names of a scheduler: where it is made, and after it is prepared."""
    found = [made.assigned]
    for one in script.of(".prepare"):
        pairs = zip(targets(one), one.arguments, strict=False)
        found += [new for new, old in pairs if old == made.assigned]
    return tuple(found)


def _of_one_rank(script: Script, ranks: int) -> Iterator[Finding]:
    """Schedules over the batches of one rank, which the loop steps once for each batch."""
    in_loop = [one for one in script.of(".step") if one.within and one.within[-1] == "training"]
    for made in script.schedules_of_one_rank:
        if any(one.on == made.name or SCHEDULER.search(one.on) for one in in_loop):
            yield _finding(
                made.at,
                f"{shown(made.at)} counts the batches of one rank ({shown(made.counts)}), and each "
                f"step of the training makes {ranks} of them, one per rank",
                Confidence.LIKELY,
            )
            return


def _is_scheduler(made: SourceCall) -> bool:
    last = made.name.rpartition(".")[2]
    of_torch = made.name.startswith("torch.optim.lr_scheduler.")
    return of_torch or last == "get_scheduler" or "_schedule" in last


def _fixed(made: SourceCall, plan: LaunchPlan) -> Setting | None:
    """The number of steps of a schedule, if it is written as such; None: it is computed."""
    last = made.name.rpartition(".")[2]
    keyword, place = OF_TORCH.get(last, GET_SCHEDULER if last == "get_scheduler" else SCHEDULE)
    given = made.argument(keyword, place)
    if given is None:
        return None
    values = {given, *made.origin(keyword, place)}
    if number := next((one for one in values if one.isdigit()), None):
        alone = len(made.origin(keyword, place)) == 1
        at = Setting(name=keyword, value=number, file=made.at.file, line=made.at.line)
        return at if alone else None
    space, _, name = given.rpartition(".")
    found = plan.get(f"arg.{name}") if space.isidentifier() and name.isidentifier() else None
    return found if found is not None and found.number else None


def _finding(made: SourceLine, because: str, confidence: Confidence) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        confidence=confidence,
        because=because,
        fixes=(
            Fix.python(
                summary="step the scheduler as often as the script says",
                paste="accelerator = Accelerator(step_scheduler_with_optimizer=False)",
                caution="with gradient accumulation, call scheduler.step() only after "
                "accelerator.sync_gradients",
            ),
            Fix.python(
                summary="or count the batches of all ranks",
                paste=f"total = steps * accelerator.num_processes  # in {made.place}",
            ),
        ),
    )
