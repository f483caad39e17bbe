"""A GPU has fewer PCIe lanes, or a slower link, than it and its slot could have.

Riser cables, dirty contacts, a card not fully seated or a slot of the chipset leave a link with 4
or 8 lanes, or at an old generation. Loading data, offloading, and on machines without NVLink every
collective, then run at a fraction of the speed.

Seen from outside: ``nvidia-smi --query-gpu=pcie.link.width.current,pcie.link.gen.current`` under
load. An idle GPU lowers its generation to save power: that is no fault, and not judged here.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.peers import median_of_others
from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.probes import HostToDevice, RankPlace
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("collective-slow-for-hardware", "straggler-rank")

# Where copies within a socket reach 53 to 56 GB/s, those between sockets reach 39 to 51, so 0.7 at
# worst (https://github.com/voipmonitor/rtx6kpro, hardware/pcie-bandwidth.md); half of the lanes
# give 0.5.
SLOW_COPY = 0.6


def narrow(gpus: Gpus) -> Iterator[Finding]:
    for gpu in gpus.answering:
        pcie = gpu.pcie
        if pcie is None or pcie.width is None or pcie.maximum_width is None:
            continue
        equals = [one.pcie.width for one in gpus.alike(gpu) if one.pcie and one.pcie.width]
        # NVIDIA allows the width to drop in an idle GPU; it does so on all of them, or on none.
        told = gpu.busy or any(width > pcie.width for width in equals)
        if pcie.width < pcie.maximum_width and told:
            yield _finding(gpu, "lanes", pcie.width, pcie.maximum_width)


def old_generation(gpus: Gpus) -> Iterator[Finding]:
    for gpu in gpus.answering:
        pcie = gpu.pcie
        if pcie is None or pcie.generation is None or pcie.maximum_generation is None:
            continue
        if gpu.busy and pcie.generation < pcie.maximum_generation:
            yield _finding(gpu, "generation", pcie.generation, pcie.maximum_generation)


def slow_copies(copies: HostToDevice) -> Iterator[Finding]:
    """One GPU whose copies are slow where equal ones are fast: whatever its link says of itself."""
    slow: dict[RankPlace, list[Observation]] = {}
    for direction, rates in (("to", copies.to_device), ("from", copies.to_host)):
        equals: dict[tuple[str, str], list[float]] = {}
        for one in rates:
            equals.setdefault((one.place.host, one.place.device_name), []).append(one.rate)
        for kind in equals.values():
            kind.sort()
        for one in rates:
            kind = equals[one.place.host, one.place.device_name]
            usual = median_of_others(kind, one.rate) if len(kind) > 1 else one.rate
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
            f"{row.name} reach {row.value}, not {row.expected} GB/s" for row in rows
        )
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{words} as those of its equals do: fewer lanes, a riser or another socket?",
            evidence=tuple(rows),
            where=Where(hosts=(place.host,), ranks=(place.rank,), devices=(place.device,)),
            fixes=(_look(place.bus_id),),
        )


def _finding(gpu: Gpu, what: str, now: int, possible: int) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN if gpu.busy else Confidence.LIKELY,
        because=(
            f"the PCIe link of {gpu.title} has {_worded(what, now)}, and card and slot can do "
            f"{_worded(what, possible)}"
            + ("" if gpu.busy else "; it is idle: look again under load to be certain")
        ),
        evidence=(Observation(name=f"PCIe {what}", value=now, expected=possible, source="NVML"),),
        where=Where(devices=(gpu.device,)),
        fixes=(_look(gpu.bus_id),),
    )


def _worded(what: str, number: int) -> str:
    return f"{number} lanes" if what == "lanes" else f"generation {number}"


def _look(bus_id: str) -> Fix:
    return Fix(
        summary="compare the link with its capability, then reseat the card or riser, or move it",
        paste=f"sudo lspci -vv -s {bus_id} | grep -E 'LnkCap:|LnkSta:'",
        caution="the slot wired to the processor with all lanes is in the board's manual",
    )
