"""The devices that a file of LightningCLI asks for, against the ranks that a launcher starts."""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.lightning_devices import INTERACTIVE, OF_TORCH
from ddoctor.evidence.launch import Setting
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity


def under_a_launcher(plan: LaunchPlan) -> Iterator[Finding]:
    """Lightning refuses other ranks than those of torchrun, and other tasks or nodes of Slurm.

    Sources: lightning/fabric/plugins/environments/torchelastic.py and slurm.py, validate_settings.
    """
    launch = plan.launch
    devices, nodes = launch.get("lightning.ranks-per-host"), launch.get("lightning.hosts")
    hosts = 1 if nodes is None else nodes.number
    if launch.get("lightning.cli") is None or devices is None or not devices.number or not hosts:
        return
    if launch.launcher in OF_TORCH:
        yield from _under_torch(plan, devices, nodes, devices.number, hosts)
    elif launch.launcher == "python" and "srun" in launch.around:
        apart = any(one.value in INTERACTIVE for one in launch.settings if "job_name" in one.name)
        asked = ("tasks-per-host", devices, devices.number), ("nodes", nodes, hosts)
        for name, own, number in () if apart else asked:
            found = {one.value for one in launch.all(name)}
            started = launch.get(name)
            if len(found) == 1 and started is not None and started.number not in (None, number):
                yield _finding(own, number, name, started)


def _under_torch(
    plan: LaunchPlan, devices: Setting, nodes: Setting | None, each: int, hosts: int
) -> Iterator[Finding]:
    ranks, launch = plan.ranks, plan.launch
    alone = each * hosts == 1 and launch.get("lightning.strategy") is None
    told = alone or launch.on("refuses-other-ranks")
    if not ranks or each * hosts == ranks or not told:
        return
    if ranks == 1 and launch.launcher == "accelerate":
        return  # accelerate starts one rank without torch's agent
    started = launch.get("ranks", "ranks-per-host")
    at = f" ({started.at})" if started is not None else ""
    on_hosts = f" and num_nodes {hosts} ({nodes.at})" if nodes is not None else ""
    then = "each trains alone on the same device" if alone else "Lightning raises a ValueError"
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=f"the Trainer gets devices {each} ({devices.at}){on_hosts}, and {launch.launcher} "
        f"starts {ranks} rank{'s' * (ranks > 1)}{at}: {then}",
        evidence=(Observation(name="ranks", value=ranks),),
        fixes=(
            Fix(
                summary="ask for what the launcher starts",
                paste=f"trainer:\n  devices: {ranks // (launch.hosts or 1)}\n"
                f"  num_nodes: {launch.hosts or 1}",
                language="yaml",
            ),
        ),
    )


def _finding(own: Setting | None, number: int, name: str, started: Setting) -> Finding:
    key = "devices" if name == "tasks-per-host" else "num_nodes"
    at = f" ({own.at})" if own is not None else ", its default"
    what = "tasks on each node" if key == "devices" else "nodes"
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=f"the Trainer gets {key} {number}{at}, and Slurm starts {started.value} {what} "
        f"({started.at}): Lightning raises a ValueError",
        evidence=(Observation(name=name, value=started.number or 0, source=started.at),),
        fixes=(
            Fix(
                summary="ask for what Slurm starts",
                paste=f"trainer:\n  {key}: {started.value}",
                language="yaml",
            ),
        ),
    )
