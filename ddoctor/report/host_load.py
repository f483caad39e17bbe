"""The load of the hosts of a live run while it was sampled, in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ddoctor.evidence.gpu_rates import GpuRates
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host_rates import HostRates
from ddoctor.evidence.section import Evidence
from ddoctor.report.wording import quantity

# MiB/s: less is what any host does without a training.
NOTABLE = 0.1
# Of the sampled time.
BUSY = 0.01


def host_load(evidence: Evidence) -> str:
    """Return the load, the busiest disk and interface, and the GPUs; empty: not sampled."""
    every = evidence.all(HostRates)
    several = len(every) > 1

    def of(host: str) -> str:
        return f" on {host}" if several else ""

    told = [_load(every), *_busiest(every, of), *_gpus(evidence)]
    return "; ".join(filter(None, told))


def _load(every: tuple[HostRates, ...]) -> str:
    loads = [one.load for one in every]
    return f"load {_span(loads, '{:.1f}'.format)}" if loads else ""


def _busiest(every: tuple[HostRates, ...], of: Callable[[str], str]) -> Iterator[str]:
    disks = [
        (disk.busy, disk, section)
        for section in every
        for disk in section.disks
        if disk.busy >= BUSY
    ]
    if disks:
        busy, disk, section = max(disks, key=lambda one: one[0])
        moved = _moved((disk.read, "read"), (disk.written, "written"))
        yield f"{disk.name}{of(section.host)} busy for {busy:.0%} of the time{moved}"
    interfaces = [
        (one.received + one.sent, one, section) for section in every for one in section.interfaces
    ]
    if interfaces:
        total, one, section = max(interfaces, key=lambda row: row[0])
        if total >= NOTABLE:
            moved = _moved((one.received, "received"), (one.sent, "sent"))
            yield f"{one.name}{of(section.host)}{moved.replace(',', ':', 1)}"


def _moved(*rates: tuple[float, str]) -> str:
    return "".join(f", {_rate(rate)} {verb}" for rate, verb in rates if rate >= NOTABLE)


def _gpus(evidence: Evidence) -> Iterator[str]:
    if not evidence.all(HostRates):
        return
    gpus = [gpu for section in evidence.all(Gpus) for gpu in section.answering]
    moved = [gpu for section in evidence.all(GpuRates) for gpu in section.gpus]
    told = (
        _each("{} busy", [gpu.utilisation for gpu in gpus], _percent),
        _each("{}", [gpu.power for gpu in gpus], _watts),
        _each("{} received over PCIe", [gpu.pcie_received for gpu in moved], _rate),
        _each("{} sent over PCIe", [gpu.pcie_sent for gpu in moved], _rate),
        _each("{} received over NVLink", [gpu.nvlink_received for gpu in moved], _rate),
        _each("{} sent over NVLink", [gpu.nvlink_sent for gpu in moved], _rate),
    )
    if any(told):
        yield "GPUs: " + ", ".join(filter(None, told))


def _each(words: str, values: Sequence[float | None], how: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    return words.format(_span(known, how)) if known else ""


def _span(values: Sequence[float], how: Callable[[float], str]) -> str:
    low, high = how(min(values)), how(max(values))
    return low if low == high else f"{low} to {high}"


def _rate(rate: float) -> str:
    return quantity(rate, "MiB/s")


def _percent(value: float) -> str:
    return f"{value:.0f} %"


def _watts(value: float) -> str:
    return f"{value:.0f} W"
