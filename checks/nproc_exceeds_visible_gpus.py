"""A host runs more ranks than it has visible GPUs.

``--nproc-per-node`` is larger than the number of GPUs that CUDA_VISIBLE_DEVICES, the scheduler or
the container make visible. A process can use only one MIG instance, so a GPU split into seven still
counts as one.

Symptoms: "CUDA error: invalid device ordinal" from the ranks with the highest numbers, and a hang
or a connection error from the other ranks.

To fix it, set ``--nproc-per-node`` to the number of visible GPUs.
"""

# Above 150 lines: joined ranks, the launch, its script, and two kinds of log lines.

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.analysis.launch_plan import ALL, LaunchPlan
from ddoctor.analysis.local_ranks import by_global_rank
from ddoctor.analysis.script_plan import devices
from ddoctor.analysis.script_source import shown
from ddoctor.analysis.source_options import in_launch
from ddoctor.evidence.joining import Joining
from ddoctor.evidence.log import Log
from ddoctor.evidence.script import Script
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "dead-rank",
    "launch-config-invalid",
    "rank-missing-at-init",
    "wrong-device-binding",
    "first-failure-masked",
    "script-error",
)

VISIBLE = "os.environ[CUDA_VISIBLE_DEVICES]"
LIST = re.compile(r"""['"]?(\d+(?:,\s*\d+)*)['"]?""")


def by_host(joining: Joining) -> Iterator[Finding]:
    for host in sorted({one.host for one in joining.ranks if one.came}):
        ranks = [one for one in joining.ranks if one.came and one.host == host]
        visible = max(one.visible_gpus or 0 for one in ranks)
        chosen = {one.visible_devices for one in ranks}
        # Some launchers make only one GPU visible to each rank.
        if not visible or len(ranks) <= visible or len(chosen) > 1:
            continue
        value = next(iter(chosen))
        why = f" (CUDA_VISIBLE_DEVICES={value})" if value is not None else ""
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.CERTAIN,
            because=f"{len(ranks)} ranks run on {host}, but torch sees {visible} GPUs there{why}",
            evidence=(
                Observation(
                    name="ranks on the host",
                    value=len(ranks),
                    expected=visible,
                    source="torch.cuda.device_count()",
                ),
            ),
            where=Where(hosts=(host,), ranks=tuple(one.rank for one in ranks)),
            fixes=(
                Fix(
                    summary=f"start {visible} ranks, one per visible GPU",
                    paste=f"torchrun --nproc-per-node={visible} …",
                    caution="or make more GPUs visible: CUDA_VISIBLE_DEVICES, the job, or `--gpus`",
                ),
            ),
        )


def in_a_launch(plan: LaunchPlan) -> Iterator[Finding]:
    launch, each = plan.launch, plan.each
    told = launch.get("ranks-per-host", "ranks")
    if each is None or told is None or told.value in ALL or launch.on("cpu"):
        return
    devices, gpus = launch.get("env.CUDA_VISIBLE_DEVICES", "devices"), plan.gpus_per_host
    # DeepSpeed ignores the variable where an option counts the GPUs.
    lists = plan.devices if launch.launcher != "deepspeed" else None
    if lists and each > len(lists) and devices is not None:
        visible, where = len(lists), f"{devices.value} ({devices.at}) makes visible"
    elif gpus is not None and gpus.number and each > gpus.number:
        visible, where = gpus.number, f"{gpus.at} asks for"
    elif plan.visible and each > plan.visible and launch.hosts == 1 and not launch.around:
        visible, where = plan.visible, "this machine has"
    else:
        return
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY if where.startswith("this") else Confidence.CERTAIN,
        because=f"{each} ranks would start on each host ({told.at}), but {where} {visible} GPU"
        f"{'s' * (visible != 1)}",
        evidence=(
            Observation(name="ranks per host", value=each, expected=visible, source=told.at),
        ),
        fixes=(
            Fix(
                summary=f"start {visible} on each host, one per GPU",
                paste=f"#SBATCH --ntasks-per-node={visible}"
                if launch.launcher == "python"
                else f"--nproc-per-node={visible}  # accelerate: --num_processes, over all hosts",
                caution="or make more GPUs visible",
            ),
        ),
    )


def in_the_source(plan: LaunchPlan, script: Script, run: TrainingRun | None) -> Iterator[Finding]:
    """A line of the script shows each rank fewer GPUs than the host has ranks that choose one."""
    # What has run says itself what failed; on CPUs nothing does.
    ranks = plan.each or 0 if run is None and devices(script) else 0
    for one in script.settings:
        if one.name != VISIBLE or one.within or one.after or script.unseen:
            continue
        value, where = one.value, ""
        if one.option:
            setting, told = in_launch(one.option, "", plan.launch)
            value = told or ""
            where = f" ({one.option} is {value}, {setting.at})" if setting is not None else ""
        listed = LIST.fullmatch(value)
        count = len(listed[1].split(",")) if listed is not None else 0
        if ranks > count > 0:
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.at)} shows every rank the same {count} GPU"
                f"{'s' * (count != 1)}{where}, and {ranks} ranks of a host choose one by their "
                "local rank",
                evidence=(
                    Observation(
                        name="ranks per host", value=ranks, expected=count, source=one.at.place
                    ),
                ),
                fixes=(
                    Fix.python(
                        summary="leave the choice of GPUs to the launch line",
                        paste=f"# without {one.at.place}: {one.at.text}",
                        caution=f"or start {count} on each host",
                    ),
                ),
            )
            return


def in_a_log(log: Log, run: TrainingRun | None) -> Iterator[Finding]:
    event = log.first("device-ordinal")
    # A script that takes the rank among all hosts for a GPU has its own cause.
    if event and (run is None or by_global_rank(run) is None):
        yield log_events.finding(
            [event],
            "a process asked for a GPU that is not visible: a host has more ranks than GPUs",
            Fix(
                summary="start one rank per visible GPU",
                paste="nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES\ntorchrun --nproc-per-node=gpu …",
            ),
        )


def by_accelerate(log: Log) -> Iterator[Finding]:
    """accelerate gives a process the GPU of its local number, and after the last GPU the first."""
    for event in log.of("accelerate-device"):
        local, device = event.values["local"], event.values["device"]
        if local != device:
            yield log_events.finding(
                [event],
                f"the process with the local number {local} has cuda:{device}: the host has fewer "
                "visible GPUs than processes, so some of them share a GPU",
                Fix(
                    summary="start one process per visible GPU",
                    paste="nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES\n"
                    "accelerate launch --num_processes 1 …  # the number of GPUs",
                ),
            )
            return
