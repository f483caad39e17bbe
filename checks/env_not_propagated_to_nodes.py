"""Variables that are set where the job starts do not reach the other hosts.

mpirun, pdsh and ssh start processes on other hosts with the environment of a new login there. Slurm
passes all variables on, unless ``--export`` says otherwise. NCCL's settings, paths and tokens are
then set on the first host only.

Symptoms: hosts behave differently: another network interface, "command not found", other debug
output; a hang in the first collective.

To fix it, name the variables: ``mpirun -x NAME``, ``srun --export=ALL``, or a ``.deepspeed_env``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.evidence.launch import Setting
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = ("environment-drift",)


def in_a_launch(plan: LaunchPlan) -> Iterator[Finding]:
    launch, variables = plan.launch, plan.variables
    if not variables:
        return
    exported = launch.get("srun.export")
    if exported is not None and "srun" in launch.around and exported.value != "ALL":
        names = exported.value.split(",")
        lost = [one for one in variables if one.name[4:] not in _named(names)]
        if "ALL" not in names and lost:
            yield _finding(
                lost, f"--export={exported.value} ({exported.at})", "srun --export=ALL …"
            )
    if "mpirun" in launch.around or "mpiexec" in launch.around:
        passed = _named([one.value for one in launch.all("mpirun.x")])
        lost = [one for one in variables if one.name[4:] not in passed]
        if lost and (launch.get("mpirun.host", "mpirun.hostfile") is not None):
            yield _finding(
                lost,
                "mpirun passes on only what -x names",
                f"mpirun {' '.join(f'-x {one.name[4:]}' for one in lost)} …",
            )


def _named(texts: list[str]) -> set[str]:
    return {text.partition("=")[0] for text in texts}


def _finding(lost: list[Setting], why: str, paste: str) -> Finding:
    names = ", ".join(one.name[4:] for one in lost)
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=f"{names} ({lost[0].at}) would not reach the ranks on other hosts: {why}",
        evidence=tuple(
            Observation(name=one.name[4:], value=one.value, source=one.at) for one in lost
        ),
        fixes=(Fix(summary="pass them on", paste=paste),),
    )
