"""A GPU's power limit is below the default or below equal GPUs, or its power brake is on.

A lower power limit means lower clocks under load. On one of many GPUs it slows down all ranks,
which wait for it. On all GPUs it may be intended, and it costs speed evenly. The power brake is a
signal from the power supply that makes the GPU halve its clocks at once.

Symptoms: ``nvidia-smi -q -d POWER`` shows a current limit that differs from the default.

To fix it, restore the default with ``nvidia-smi -pl``, or replace the failed power supply.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("collective-slow-for-hardware", "straggler-rank", "uneven-gpu-speed")

# Boards round the requested limit, and a limit 1 % below the default is not a deliberate cap.
TOLERANCE = 0.01

BRAKE = "hw_power_brake_slowdown"


def lowered(every: tuple[Gpus, ...]) -> Iterator[Finding]:
    """Compares all hosts: one capped node slows down all others."""
    limits = {(gpu.name, gpu.power_limit) for gpus in every for gpu in gpus.answering}
    for gpus in every:
        capped = [gpu for gpu in gpus.answering if _share(gpu) < 1 - TOLERANCE]
        for name, limit in dict.fromkeys((gpu.name, gpu.power_limit) for gpu in capped):
            alike = [gpu for gpu in capped if (gpu.name, gpu.power_limit) == (name, limit)]
            highest = max(other or 0.0 for model, other in limits if model == name)
            uneven = (limit or 0.0) < highest * (1 - TOLERANCE)
            first = alike[0]
            binding = any("sw_power_cap" in (gpu.throttle_reasons or ()) for gpu in alike)
            if uneven:
                effect = "other GPUs of the same model have a higher limit, and wait for it"
            elif binding:
                effect = "it lowers the clocks now"
            else:
                effect = "all GPUs of the model have it, so it costs speed on all ranks evenly"
            every_one = len(alike) == len(gpus.gpus) > 1
            which = "all GPUs" if every_one else ", ".join(gpu.title for gpu in alike)
            indices = ",".join(str(gpu.index) for gpu in alike)
            yield Finding(
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
                        source="default limit, NVML",
                    ),
                ),
                where=Where(hosts=(gpus.host,), devices=tuple(gpu.device for gpu in alike)),
                fixes=(
                    Fix(
                        summary="restore the default power limit",
                        paste=f"sudo nvidia-smi -i {indices} -pl {first.power_default:.0f}",
                        caution="ask first whether it was set on purpose: the cooling or the power "
                        "of the room may require it",
                    ),
                ),
            )


def power_brake(gpus: Gpus) -> Iterator[Finding]:
    braked = [gpu for gpu in gpus.answering if BRAKE in (gpu.throttle_reasons or ())]
    if not braked:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        because=(
            f"the power supply lowers the clocks of {', '.join(gpu.title for gpu in braked)}"
            + (
                f": {braked[0].sm_clock} of {braked[0].sm_clock_maximum} MHz"
                if braked[0].sm_clock_maximum
                else ""
            )
        ),
        evidence=(
            Observation(
                name="clocks limited by",
                value=BRAKE,
                source="NVML API reference, nvmlClocksEventReasons",
            ),
        ),
        where=Where(devices=tuple(gpu.device for gpu in braked)),
        fixes=(_SUPPLY,),
    )


def in_a_log(log: Log) -> Iterator[Finding]:
    """A part of what nvidia-smi prints of one GPU."""
    if event := log.first("power-brake"):
        yield log_events.finding(
            [event],
            "the power supply, or the controller of the board, lowers the clocks of this GPU",
            _SUPPLY,
            severity=Severity.WARNING,
        )


_SUPPLY = Fix(
    summary="find the power supply that has failed or is overloaded",
    paste="sudo ipmitool sdr type 'Power Supply'\nsudo ipmitool sel list | tail -n 20",
    caution="then have the power cables and supplies of the node checked",
)


def _share(gpu: Gpu) -> float:
    """The limit as a share of the default; 1 if either is unknown."""
    return gpu.power_limit / gpu.power_default if gpu.power_limit and gpu.power_default else 1.0
