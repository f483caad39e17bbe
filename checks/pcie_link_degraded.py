"""A GPU's PCIe link has fewer lanes, or a lower generation, than the GPU and its slot support.

Riser cables, dirty contacts, a badly seated card or a chipset slot leave a link with 4 or 8 lanes,
or at an old generation. Data loading and offloading then run at a fraction of the speed. On
machines without NVLink, so does every collective.

Symptoms: ``nvidia-smi --query-gpu=pcie.link.width.current,pcie.link.gen.current`` shows it under
load. An idle GPU lowers its generation to save power, which is normal and not a finding.

To fix it, reseat the card or the riser, or move the card to a slot with all lanes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import gpu_diagnostics
from ddoctor.analysis.describe import where
from ddoctor.analysis.peers import with_peers
from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.log import Messages
from ddoctor.evidence.printed import GpuDiagnostic
from ddoctor.evidence.probes import HostToDevice, RankPlace
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("collective-slow-for-hardware", "straggler-rank")
OF_MACHINE = True

# Copies within a socket reach 53 to 56 GB/s, copies between sockets 39 to 51: at worst a ratio of
# 0.7 (https://github.com/voipmonitor/rtx6kpro, hardware/pcie-bandwidth.md). Half of the lanes give
# 0.5.
SLOW_COPY = 0.6


def narrow(gpus: Gpus) -> Iterator[Finding]:
    for gpu in gpus.answering:
        if gpu.pcie is not None:
            equals = [one.pcie.width or 0 for one in gpus.alike(gpu) if one.pcie is not None]
            # An idle GPU may reduce its link width; then all idle GPUs do.
            if gpu.busy or max(equals, default=0) > (gpu.pcie.width or 0):
                yield from _below(gpu, "lanes", gpu.pcie.width, gpu.pcie.maximum_width)


def old_generation(gpus: Gpus) -> Iterator[Finding]:
    for gpu in gpus.answering:
        if gpu.pcie is not None and gpu.busy:
            maximum = gpu.pcie.maximum_generation
            yield from _below(gpu, "generation", gpu.pcie.generation, maximum)


def slow_copies(copies: HostToDevice) -> Iterator[Finding]:
    """A GPU with slower copies than equal GPUs, whatever its link reports."""
    slow: dict[RankPlace, list[Observation]] = {}
    for direction, rates in (("to", copies.to_device), ("from", copies.to_host)):
        for one, usual, _ in with_peers(
            rates,
            group=lambda one: (one.place.host, one.place.device_name),
            value=lambda one: one.rate,
        ):
            if one.rate < usual * SLOW_COPY:
                row = Observation(
                    name=f"copies {direction} {one.place.device}",
                    value=round(one.rate, 1),
                    unit="GB/s",
                    expected=round(usual, 1),
                    source="equal GPUs of this host",
                )
                slow.setdefault(one.place, []).append(row)
    for place, rows in slow.items():
        words = " and ".join(
            f"{row.name} reach {row.value} instead of {row.expected} GB/s" for row in rows
        )
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{words} on equal GPUs; possible causes: fewer lanes, a riser, another socket",
            evidence=tuple(rows),
            where=where([place]),
            fixes=(_reseat(place.bus_id),),
        )


def in_a_diagnostic(diagnostic: GpuDiagnostic, messages: Messages) -> Iterator[Finding]:
    """Tests of DCGM that fail with words of this cause."""
    yield from gpu_diagnostics.told(diagnostic, messages, "pcie-link-degraded")


def _below(gpu: Gpu, what: str, now: int | None, possible: int | None) -> Iterator[Finding]:
    if now is None or possible is None or now >= possible:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN if gpu.busy else Confidence.LIKELY,
        because=(
            f"the PCIe link of {gpu.title} has {_worded(what, now)}, but card and slot support "
            f"{_worded(what, possible)}"
            + ("" if gpu.busy else f"{_state(gpu)}; check again under load to be certain")
        ),
        evidence=(Observation(name=f"PCIe {what}", value=now, expected=possible, source="NVML"),),
        where=Where(devices=(gpu.device,)),
        fixes=(_reseat(gpu.bus_id),),
    )


def _state(gpu: Gpu) -> str:
    return "" if gpu.utilisation is None else "; it is idle"


def _worded(what: str, number: int) -> str:
    return f"{number} lanes" if what == "lanes" else f"generation {number}"


def _reseat(bus_id: str) -> Fix:
    return Fix(
        summary="compare LnkSta with LnkCap, then reseat or move the card or riser",
        paste=f"sudo lspci -vv -s {bus_id} | grep -E 'LnkCap:|LnkSta:'",
        caution="the manual of the board names the slots with all CPU lanes",
    )
