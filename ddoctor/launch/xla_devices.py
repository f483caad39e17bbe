"""Launches of accelerate on TPUs, which start a process for each device and not a given number.

Source: accelerate/commands/launch.py: ``tpu_launcher`` calls ``xmp.spawn`` without a number, and
``tpu_pod_launcher`` starts the same on each host of the pod.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace as with_fields

from ddoctor.evidence.launch import Setting

KIND = "xla-devices"
ASKS = ("strategy", "accelerate.tpu")
VALUES = ("tpu", "true")


def without_ranks(settings: Sequence[Setting]) -> list[Setting]:
    """The settings, on TPUs with ``xla-devices`` instead of a number of ranks.

    Its value is ``host``, or the name of the pod.
    """
    told = {one.name: one for one in reversed(settings)}
    asked = next((told[name] for name in ASKS if name in told and told[name].value in VALUES), None)
    if asked is None:
        return [*settings]
    of_pod = told.get("accelerate.tpu_use_cluster")
    named = told.get("accelerate.tpu_name")
    pod = named.value if named is not None and of_pod is not None and of_pod.on else "host"
    kept = [
        with_fields(one, name="accelerate.num_processes") if one.name == "ranks" else one
        for one in settings
        if one.name != "hosts" or pod == "host"
    ]
    return [*kept, with_fields(asked, name=KIND, value=pod)]
