"""A GPU lowers its clocks because it is too hot.

In synchronous training every rank waits for the slowest GPU, so one hot GPU slows down all of them.
The reason is nearly always outside the chip: a blocked air path, a dead fan, a loose cold plate, or
warm air from other GPUs.

Symptoms: ``nvidia-smi -q -d PERFORMANCE,TEMPERATURE`` under load shows an active thermal slowdown.
The software power cap is active on every GPU under full load; it is normal and not a finding.

To fix it, repair the cooling. Until then, lower the power limit of the GPU or run without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ddoctor.analysis import gpu_diagnostics, log_events
from ddoctor.analysis.describe import where
from ddoctor.analysis.environment_fixes import without
from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.log import Log, Messages
from ddoctor.evidence.printed import GpuDiagnostic
from ddoctor.evidence.probes import Burn
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("collective-slow-for-hardware", "straggler-rank", "uneven-gpu-speed")
OF_MACHINE = True

SOURCE = "NVML API reference, nvmlClocksEventReasons"


def throttled(gpus: Gpus) -> Iterator[Finding]:
    for gpu in gpus.answering:
        reasons = [reason for reason in gpu.throttle_reasons or () if "thermal" in reason]
        asleep = "gpu_idle" in (gpu.throttle_reasons or ()) and not gpu.busy
        if not reasons or (asleep and "hw_thermal_slowdown" not in reasons):
            continue
        equals = [one.sm_clock for one in gpus.alike(gpu) if one.busy and one.sm_clock is not None]
        usual = round(median(equals)) if equals else None
        # Compute slows down with the clock, and all ranks wait.
        lost = 1 - gpu.sm_clock / usual if gpu.sm_clock and usual and gpu.busy else 0.0
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.CERTAIN,
            because=(
                f"heat slows down {gpu.title} ({', '.join(reasons)}){_now(gpu)}"
                + (f"; equal GPUs run at {usual} MHz" if lost > 0 else "")
            ),
            evidence=tuple(_evidence(gpu, reasons, usual)),
            where=Where(devices=(gpu.device,)),
            cost=Cost(value=round(lost, 2), unit="share of step") if lost > 0 else None,
            fixes=tuple(_fixes(gpus, gpu)),
        )


def under_load(burn: Burn) -> Iterator[Finding]:
    """Thermal slowdown that NVML reported while all GPUs computed continuously."""
    for rank in burn.ranks:
        reasons = [reason for reason in rank.limited_by if "thermal" in reason]
        if not reasons:
            continue
        degrees = f", at up to {max(rank.temperatures)} °C" if rank.temperatures else ""
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.CERTAIN,
            because=(
                f"heat slowed down rank {rank.place.rank} ({rank.place.device}) "
                f"({', '.join(reasons)}) in {burn.seconds:.0f} s of full load{degrees}"
            ),
            evidence=(
                Observation(name="clocks limited by", value=", ".join(reasons), source=SOURCE),
            ),
            where=where([rank.place]),
            cost=Cost(value=round(rank.fallen, 2), unit="share of speed") if rank.fallen else None,
            fixes=(_cool(rank.place.bus_id),),
        )


def in_a_diagnostic(diagnostic: GpuDiagnostic, messages: Messages) -> Iterator[Finding]:
    """Tests of DCGM that fail with words of this cause."""
    yield from gpu_diagnostics.told(diagnostic, messages, "gpu-thermal-throttling")


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("thermal-slowdown"):
        yield log_events.finding(
            [event],
            "the GPU is too hot, and lowers its clocks",
            Fix(
                summary="check the cooling of the node, and leave the GPU out until then",
                paste="nvidia-smi -q -d TEMPERATURE,PERFORMANCE",
            ),
            severity=Severity.WARNING,
        )


def _now(gpu: Gpu) -> str:
    """Clock and temperature, as far as they were read."""
    clock = f"{gpu.sm_clock} of {gpu.sm_clock_maximum} MHz" if gpu.sm_clock_maximum else ""
    heat = f"{gpu.temperature} °C" if gpu.temperature is not None else ""
    told = " at ".join(filter(None, (clock, heat)))
    return f": {told}" if told else ""


def _evidence(gpu: Gpu, reasons: list[str], usual: int | None) -> Iterator[Observation]:
    yield Observation(name="clocks limited by", value=", ".join(reasons), source=SOURCE)
    if gpu.temperature is not None:
        yield Observation(name="temperature", value=gpu.temperature, unit="°C", source="NVML")
    if gpu.sm_clock is not None:
        source = "equal GPUs of this host" if usual is not None else "NVML"
        yield Observation(
            name="SM clock", value=gpu.sm_clock, unit="MHz", expected=usual, source=source
        )


def _fixes(gpus: Gpus, gpu: Gpu) -> Iterator[Fix]:
    yield _cool(str(gpu.index))
    if gpu.busy and gpu.power is not None:
        yield Fix(
            summary="until then, limit its power to its current draw, which the cooling can handle",
            paste=f"sudo nvidia-smi -i {gpu.index} -pl {gpu.power:.0f}",
            caution="it stays slower than equal GPUs, but the hardware does not halve its clocks; "
            "reset by a reboot",
        )
    if len(gpus.answering) > 1:
        yield without(gpus, gpu)


def _cool(name: str) -> Fix:
    return Fix(
        summary="check air path, fans, filters and cold plate, and watch the temperature",
        paste=(
            f"nvidia-smi -i {name} -l 2 --format=csv "
            "--query-gpu=temperature.gpu,clocks.sm,power.draw"
        ),
    )
