"""The devices that a script asks Lightning for, against the ranks that another launcher starts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.script_plan import OF_LIGHTNING
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

OF_TORCH = ("torchrun", "torch.distributed.launch", "accelerate")
"""Launchers that start torch's elastic agent."""
INTERACTIVE = ("bash", "interactive")
STRATEGIES = ("'ddp'", "'fsdp'", "'deepspeed'", "'ddp_find_unused_parameters_true'")
HIDES = ("**", "plugins")
"""Arguments behind which other nodes, or another environment, may be."""
OF_A_KEY = re.compile(r"""\w+\[(['"])(?P<key>\w+)\1\]""")


def under_srun(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """Lightning under srun wants a task for each of its devices."""
    launch = plan.launch
    tasks = launch.get("tasks-per-host")
    if tasks is None or tasks.number is None or "srun" not in launch.around:
        return
    for one in script.of(*OF_LIGHTNING) if launch.launcher == "python" else ():
        devices = launch.written(one.argument("devices"))
        if one.name.endswith("Trainer") and devices and devices != tasks.number:
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.at)} has {devices} devices on each host, and Slurm starts "
                f"{tasks.value} task{'s' * (tasks.number > 1)} there ({tasks.at}): Lightning needs "
                "a task for each device",
                evidence=(Observation(name="tasks", value=tasks.number, source=tasks.at),),
                fixes=(
                    Fix(
                        summary="start as many tasks as there are devices",
                        paste=f"#SBATCH --ntasks-per-node={devices}",
                    ),
                ),
            )


def nodes_under_srun(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """Lightning under srun refuses another number of nodes than that of the job.

    Source: lightning/fabric/plugins/environments/slurm.py, validate_settings, which the strategies
    of one process for each device call (pytorch/strategies/launchers/subprocess_script.py).
    """
    launch, made = plan.launch, script.of(*OF_LIGHTNING)
    asked = launch.all("nodes")
    # In a job of these names, Lightning ignores Slurm.
    apart = any(one.value in INTERACTIVE for one in launch.settings if "job_name" in one.name)
    if launch.launcher != "python" or "srun" not in launch.around or len(made) != 1 or apart:
        return
    # srun may take a part of the nodes.
    if len({one.value for one in asked}) != 1 or not asked[0].number:
        return
    trainer, nodes = made[0], asked[0]
    own = _number(trainer.argument("num_nodes") or "1", launch)
    devices = _number(trainer.argument("devices") or "", launch)
    alone = devices is None or devices.number in (None, 1)
    several = trainer.argument("strategy") in STRATEGIES or not alone
    if not trainer.name.endswith("Trainer") or not {*trainer.keywords}.isdisjoint(HIDES):
        return
    if own is None or not own.number or own.number == nodes.number or not several:
        return
    at = f" ({own.at})" if own.at else ""
    # The script may set the key of a configuration itself.
    sure = "[" not in (trainer.argument("num_nodes") or "")
    yield Finding(
        severity=Severity.ERROR if sure else Severity.WARNING,
        confidence=Confidence.LIKELY if sure else Confidence.POSSIBLE,
        because=f"{shown(trainer.at)} has num_nodes {own.value}{at}, and Slurm starts it on "
        f"{nodes.value} node{'s' * (nodes.number != 1)} ({nodes.at}): "
        "Lightning raises a ValueError",
        evidence=(Observation(name="nodes", value=nodes.number or 0, source=nodes.at),),
        fixes=(
            Fix.python(
                summary="ask for the nodes of the job, in the script or in its configuration",
                paste=f"num_nodes={nodes.value}",
            ),
        ),
    )


def _number(text: str, launch: Launch) -> Setting | None:
    """A number of the source, ``2``, ``args.nodes`` or ``cfg["nodes"]``; None: not known."""
    if text.isdigit():
        return Setting(name="", value=text)
    keyed = OF_A_KEY.fullmatch(text)
    key = keyed["key"] if keyed else text.partition(".")[2]
    return launch.get(f"arg.{key}") if key else None


def under_torchrun(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """Lightning under torchrun refuses another number of ranks than its devices on all its nodes.

    With one device and no strategy, it trains on that alone, in each of the ranks. Sources:
    lightning/fabric/plugins/environments/torchelastic.py, validate_settings;
    lightning/pytorch/trainer/connectors/accelerator_connector.py, _choose_strategy.
    """
    launch, ranks, made = plan.launch, plan.ranks, script.of(*OF_LIGHTNING)
    devices, nodes = launch.get("lightning.ranks-per-host"), launch.get("lightning.hosts")
    each, hosts = devices and devices.number, 1 if nodes is None else nodes.number
    if launch.launcher not in OF_TORCH or len(made) != 1 or devices is None or not each:
        return
    # accelerate starts one rank without torch's agent.
    if not hosts or not ranks or (ranks == 1 and launch.launcher == "accelerate"):
        return
    if each * hosts == ranks:
        return
    alone = each * hosts == 1 and made[0].argument("strategy") is None
    if not alone and not launch.on("refuses-other-ranks"):
        return
    asks = f"{shown(made[0].at)} asks for {each} device{'s' * (each > 1)}"
    then = "Lightning raises a ValueError"
    if alone:
        then = "each of them trains alone on the same device"
    started = launch.get("ranks", "ranks-per-host")
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=f"{asks}{f' on each of {hosts} hosts' if hosts > 1 else ''}, and {launch.launcher} "
        f"starts {ranks} rank{'s' * (ranks > 1)}"
        f"{f' ({started.at})' if started is not None else ''}: {then}",
        evidence=(Observation(name="ranks", value=ranks),),
        fixes=(
            Fix.python(
                summary="ask for what the launcher starts",
                paste=f"devices={ranks // (launch.hosts or 1)}, num_nodes={launch.hosts or 1}",
            ),
        ),
    )
