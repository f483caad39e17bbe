"""The load of the hosts of a live run while it was sampled, in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.live import GpuRates, HostRates
from ddoctor.evidence.section import Evidence
from ddoctor.report.wording import quantity, span

# MiB/s: less is what any host does without a training.
NOTABLE = 0.1
# Of the sampled time.
BUSY = 0.01


def host_load(evidence: Evidence) -> str:
    """Return the load, the busiest disk and interface, and the GPUs; empty: not sampled."""
    return "; ".join((*_busiest(evidence.all(HostRates)), *_gpus(evidence)))


def _busiest(every: tuple[HostRates, ...]) -> Iterator[str]:
    def of(host: str) -> str:
        return f" on {host}" if len(every) > 1 else ""

    if every:
        yield f"load {_span([one.load for one in every], '{:.1f}'.format)}"
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
    figures = {
        "{} busy": _span([gpu.utilisation for gpu in gpus], "{:.0f} %".format),
        "{}": _span([gpu.power for gpu in gpus], "{:.0f} W".format),
        "{} received over PCIe": _span([gpu.pcie_received for gpu in moved], _rate),
        "{} sent over PCIe": _span([gpu.pcie_sent for gpu in moved], _rate),
        "{} received over NVLink": _span([gpu.nvlink_received for gpu in moved], _rate),
        "{} sent over NVLink": _span([gpu.nvlink_sent for gpu in moved], _rate),
    }
    if any(figures.values()):
        yield "GPUs: " + ", ".join(words.format(text) for words, text in figures.items() if text)


def _span(values: Sequence[float | None], how: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    return span(how(min(known)), how(max(known))) if known else ""


def _rate(rate: float) -> str:
    return quantity(rate, "MiB/s")
