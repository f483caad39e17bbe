"""Lists of hosts and GPUs on a launch line, against what is there and what starts."""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.launch_mistakes import Mistake
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.evidence.launch import Launch
from ddoctor.models import Confidence, Fix, Severity


def misfits(plan: LaunchPlan) -> Iterator[Mistake]:
    """All of them."""
    yield from _absent(plan.launch)
    yield from _unused(plan)


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
