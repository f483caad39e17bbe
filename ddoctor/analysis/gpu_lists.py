"""Lists of hosts and GPUs on a launch line, against what is there and what starts."""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.mistake import Mistake
from ddoctor.evidence.launch import Launch
from ddoctor.models import Confidence, Fix, Severity


def misfits(plan: LaunchPlan) -> Iterator[Mistake]:
    """All of them."""
    yield from _absent(plan.launch)
    yield from _unused(plan)
    yield from _ignored(plan)
    yield from _few_slots(plan.launch)


def _absent(launch: Launch) -> Iterator[Mistake]:
    """Hosts and slots that the hostfile does not have.

    Source: deepspeed/launcher/runner.py, parse_resource_filter, which raises ValueError.
    """
    listed = launch.get("host-slots")
    for one in (*launch.all("absent-host"), *launch.all("absent-slots")):
        wrong = (
            "is no host of the hostfile: deepspeed raises ValueError"
            if one.name == "absent-host"
            else "names slots that its host does not have in the hostfile"
        )
        yield Mistake(
            because=f"{one.value} ({one.at}) {wrong}",
            at=one,
            fix=Fix(
                summary="choose among the hosts and slots of the hostfile",
                paste=listed.value if listed is not None else one.value,
                language="text",
            ),
            confidence=Confidence.LIKELY,
        )


def _unused(plan: LaunchPlan) -> Iterator[Mistake]:
    """GPUs that are made visible to the processes of accelerate, which uses one for each."""
    launch, chosen, each = plan.launch, plan.launch.get("devices"), plan.each
    count = len(plan.devices or ())
    # One process may use several GPUs, by device_map.
    if launch.launcher != "accelerate" or chosen is None or each is None or not 1 < each < count:
        return
    ranks = launch.get("ranks")
    yield Mistake(
        because=f"gpu_ids lists {count} GPUs ({chosen.at}), and {each} processes start on each "
        f"machine ({ranks.at if ranks is not None else chosen.at}): {count - each} GPUs stay idle",
        at=chosen,
        fix=Fix(
            summary="start a process for each GPU, or list fewer GPUs",
            paste=f"accelerate launch --num_processes {count * (launch.hosts or 1)} …",
        ),
        confidence=Confidence.LIKELY,
        severity=Severity.WARNING,
    )


def _ignored(plan: LaunchPlan) -> Iterator[Mistake]:
    """DeepSpeed forgets CUDA_VISIBLE_DEVICES where an option counts the GPUs.

    Source: deepspeed/launcher/runner.py, main, "Detected VISIBLE_DEVICES … but ignoring it".
    """
    launch, chosen = plan.launch, plan.launch.get("env.CUDA_VISIBLE_DEVICES")
    counts = launch.get("ranks-per-host")
    asked = counts is not None and counts.number is not None and "default" not in counts.origin
    if launch.launcher != "deepspeed" or chosen is None or counts is None or not asked:
        return
    devices, first = plan.devices or (), [str(one) for one in range(counts.number or 0)]
    if not devices or launch.get("deepspeed.include", "host-names") is not None:
        return
    if set(devices) != set(first):
        yield Mistake(
            because=f"CUDA_VISIBLE_DEVICES is {chosen.value} ({chosen.at}), but deepspeed ignores "
            f"it with --num_gpus ({counts.at}): the ranks use GPUs {', '.join(first)}",
            at=chosen,
            fix=Fix(
                summary="choose the GPUs by --include",
                paste=f"deepspeed --include localhost:{chosen.value} …",
            ),
            confidence=Confidence.LIKELY,
            severity=Severity.WARNING,
        )


def _few_slots(launch: Launch) -> Iterator[Mistake]:
    """Open MPI starts no more processes than there are slots, unless it may oversubscribe.

    Source: docs.open-mpi.org, mpirun, "Slots and oversubscription".
    """
    tasks, listed = launch.get("tasks"), launch.get("mpirun.host")
    options = [one for one in launch.settings if one.name.startswith("mpirun.")]
    more = any("oversubscribe" in f"{one.name} {one.value}".lower() for one in options)
    if tasks is None or tasks.number is None or listed is None or more:
        return
    slots = [part.partition(":")[2] for part in listed.value.split(",")]
    count = sum(int(one) for one in slots) if all(map(str.isdigit, slots)) else tasks.number
    if count < tasks.number:
        yield Mistake(
            because=f"{tasks.number} processes are to start ({tasks.at}), and the hosts have "
            f"{count} slots ({listed.at}): Open MPI refuses that",
            at=tasks,
            fix=Fix(summary="start a process for each slot", paste=f"mpirun -np {count} …"),
            confidence=Confidence.LIKELY,
        )
