"""A GPU's power limit is below its default, below its equals', or is enforced by the power supply.

A lower limit means lower clocks under load. On one GPU of many it slows all ranks, which wait for
it; on all of them it is often somebody's intention and costs speed evenly. A power brake is the
power supply telling the GPU to halve its clocks at once.

Seen from outside: ``nvidia-smi -q -d POWER`` shows a current limit other than the default.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("collective-slow-for-hardware", "straggler-rank", "uneven-gpu-speed")

# Boards round what they are asked for; nobody sets a limit one per cent under the default.
TOLERANCE = 0.01


def lowered(every: tuple[Gpus, ...]) -> Iterator[Finding]:
    """Judged over all hosts: one capped node among many slows the others."""
    limits = {(gpu.name, gpu.power_limit) for gpus in every for gpu in gpus.answering}
    for gpus in every:
        capped = [gpu for gpu in gpus.answering if _share(gpu) < 1 - TOLERANCE]
        for name, limit in dict.fromkeys((gpu.name, gpu.power_limit) for gpu in capped):
            alike = [gpu for gpu in capped if (gpu.name, gpu.power_limit) == (name, limit)]
            highest = max(other or 0.0 for model, other in limits if model == name)
            uneven = (limit or 0.0) < highest * (1 - TOLERANCE)
            yield _finding(gpus, alike, uneven)


def power_brake(gpus: Gpus) -> Iterator[Finding]:
    braked = [g for g in gpus.answering if "hw_power_brake_slowdown" in (g.throttle_reasons or ())]
    if not braked:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        because=(
            f"the power supply makes {', '.join(gpu.title for gpu in braked)} brake: "
            f"{braked[0].sm_clock} of {braked[0].sm_clock_maximum} MHz"
        ),
        evidence=(
            Observation(
                name="clocks limited by",
                value="hw_power_brake_slowdown",
                source="NVML API reference, nvmlClocksEventReasons",
            ),
        ),
        where=Where(devices=tuple(gpu.device for gpu in braked)),
        fixes=(
            Fix(
                summary="see which power supply has failed or is overloaded",
                paste="sudo ipmitool sdr type 'Power Supply'\nsudo ipmitool sel list | tail -n 20",
                caution="the node's cables and supplies have to be looked at",
            ),
        ),
    )


def _share(gpu: Gpu) -> float:
    """The limit as a part of the default; 1 where either is not told."""
    return gpu.power_limit / gpu.power_default if gpu.power_limit and gpu.power_default else 1.0


def _finding(gpus: Gpus, capped: list[Gpu], uneven: bool) -> Finding:
    first = capped[0]
    binding = any("sw_power_cap" in (gpu.throttle_reasons or ()) for gpu in capped)
    which = "all GPUs" if len(capped) == len(gpus.gpus) > 1 else ", ".join(g.title for g in capped)
    effect = (
        "others of the same model have more, and wait for it"
        if uneven
        else "it holds the clocks down now"
        if binding
        else "all of the model have the same, so it costs speed but no balance"
    )
    indices = ",".join(str(gpu.index) for gpu in capped)
    return Finding(
        severity=Severity.WARNING if uneven or binding else Severity.NOTE,
        confidence=Confidence.CERTAIN,
        because=(
            f"the power limit of {which} is {first.power_limit:.0f} W, "
            f"the default {first.power_default:.0f} W; {effect}"
        ),
        evidence=(
            Observation(
                name="power limit",
                value=first.power_limit or 0.0,
                unit="W",
                expected=first.power_default,
                source="the board's default, NVML",
            ),
        ),
        where=Where(hosts=(gpus.host,), devices=tuple(gpu.device for gpu in capped)),
        fixes=(
            Fix(
                summary="restore the default",
                paste=f"sudo nvidia-smi -i {indices} -pl {first.power_default:.0f}",
                caution="ask first whether it was set on purpose: cooling or the room's power may "
                "need it",
            ),
        ),
    )
