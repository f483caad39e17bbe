"""Hosts and GPUs side by side: the tables of the formats that have room for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ddoctor.evidence.gpus import Gpu, GpuProcess, Gpus
from ddoctor.evidence.host import SharedMemory
from ddoctor.evidence.section import Evidence
from ddoctor.models import Report
from ddoctor.report.machine import ALIKE, MACHINE
from ddoctor.report.wording import size

SIDE_BY_SIDE = 16
"""At most this many hosts are shown in one table."""

CLOSE_UP = 8
"""Of more hosts, at most this many that findings name are shown in detail."""

THROTTLED_BY = {
    "sw_power_cap": "power",
    "hw_power_brake_slowdown": "power brake",
    "sw_thermal_slowdown": "heat",
    "hw_thermal_slowdown": "heat",
    "hw_slowdown": "hardware",
    "applications_clocks_setting": "setting",
    "gpu_idle": "idle",
}
"""Short words for NVML's names, which fit a column."""


@dataclass(frozen=True, kw_only=True)
class HostRow:
    """One property, and its value in each column."""

    label: str
    values: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether all columns agree."""
        return len(set(self.values)) == 1

    @cached_property
    def odd(self) -> tuple[bool, ...]:
        """Return which columns differ from the majority; none if there is no majority."""
        usual, times = Counter(self.values).most_common(1)[0]
        majority = 2 * times > len(self.values)
        return tuple(majority and value != usual for value in self.values)


@dataclass(frozen=True, kw_only=True)
class HostTable:
    """Hosts side by side, a column of each row per host."""

    hosts: tuple[str, ...]
    rows: tuple[HostRow, ...]


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process that holds memory of a GPU."""

    gpu: int
    process: GpuProcess


def close_up(report: Report, evidence: Evidence) -> tuple[str, ...]:
    """Return the hosts to show in detail: all of a few; of many, the first that findings name."""
    if len(evidence.hosts) <= SIDE_BY_SIDE:
        return evidence.hosts
    known = set(evidence.hosts)
    named = dict.fromkeys(
        host
        for finding in report.findings
        if len(finding.where.hosts) <= SIDE_BY_SIDE
        for host in finding.where.hosts
        if host in known
    )
    return tuple(named)[:CLOSE_UP]


def host_table(evidence: Evidence) -> HostTable:
    """Return the known properties of each host.

    Of many hosts, only those that differ from the majority, and the properties that differ.
    """
    hosts = evidence.hosts
    rows = tuple(_row(evidence, hosts, *column) for column in (*MACHINE, SHARED_MEMORY))
    if len(hosts) <= SIDE_BY_SIDE:
        return HostTable(hosts=hosts, rows=tuple(row for row in rows if any(row.values)))
    rows = tuple(
        row
        for label, of in MACHINE
        if any((row := _row(evidence, hosts, label, ALIKE.get(label, of))).odd)
    )
    odd = [n for n, _ in enumerate(hosts) if any(row.odd[n] for row in rows)][:SIDE_BY_SIDE]
    kept = tuple(replace(row, values=tuple(row.values[n] for n in odd)) for row in rows)
    return HostTable(hosts=tuple(hosts[n] for n in odd), rows=kept)


def _row(
    evidence: Evidence, hosts: Sequence[str], label: str, of: Callable[[Evidence, str], str]
) -> HostRow:
    return HostRow(label=label, values=tuple(of(evidence, host) for host in hosts))


def gpu_rows(gpus: Gpus) -> tuple[HostRow, ...]:
    """Return NVML's properties of each GPU, a column per GPU; unknown ones are left out."""
    rows = (
        HostRow(label=label, values=tuple(of(gpu) for gpu in gpus.gpus))
        for label, of in GPU_PROPERTIES
    )
    return tuple(row for row in rows if any(row.values))


def holders(gpus: Gpus) -> tuple[Holder, ...]:
    """Return the processes on the GPUs of a host."""
    return tuple(
        Holder(gpu=gpu.index, process=process)
        for gpu in gpus.gpus
        for process in gpu.processes or ()
    )


def _shared_memory(evidence: Evidence, host: str) -> str:
    section = evidence.of(SharedMemory, host)
    return f"{size(section.size)}, {size(section.free)} free" if section is not None else ""


SHARED_MEMORY = ("/dev/shm", _shared_memory)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _gib(value: int) -> str:
    return f"{value / 2**30:.1f}"


def _throttling(gpu: Gpu) -> str:
    if gpu.throttle_reasons is None:
        return ""
    words = (THROTTLED_BY.get(reason, reason) for reason in gpu.throttle_reasons)
    return ", ".join(dict.fromkeys(words)).replace("_", " ") or "no"


def _pcie(gpu: Gpu) -> str:
    link = gpu.pcie
    if link is None or link.generation is None or link.width is None:
        return ""
    return f"{link.generation} ×{link.width}"


def _pcie_possible(gpu: Gpu) -> str:
    link = gpu.pcie
    if link is None or link.maximum_generation is None or link.maximum_width is None:
        return ""
    return f"{link.maximum_generation} ×{link.maximum_width}"


def _nvlinks(gpu: Gpu) -> str:
    return _number(None if gpu.nvlinks is None else len(gpu.nvlinks))


def _nvlinks_active(gpu: Gpu) -> str:
    return _number(None if gpu.nvlinks is None else sum(link.active for link in gpu.nvlinks))


def _ecc(gpu: Gpu) -> str:
    if gpu.ecc_enabled is False:
        return "off"
    return _number(gpu.ecc_uncorrected_volatile)


def _rows_remapped(gpu: Gpu) -> str:
    state = "failed" if gpu.remap_failed else "pending" if gpu.remap_pending else ""
    return " ".join(filter(None, (_number(gpu.rows_remapped), state)))


def _mig(gpu: Gpu) -> str:
    return "" if gpu.mig is None else "on" if gpu.mig else "off"


def _state(gpu: Gpu) -> str:
    return f"lost {gpu.error}".rstrip() if gpu.lost else "ok"


def _fabric(gpu: Gpu) -> str:
    if gpu.fabric_state in (None, "not_supported"):
        return ""
    parts = (gpu.fabric_state, gpu.fabric_status, *gpu.fabric_trouble)
    return ", ".join(filter(None, parts)).replace("_", " ")


def _recovery(gpu: Gpu) -> str:
    return (gpu.recovery_action or "").replace("_", " ")


GPU_PROPERTIES: tuple[tuple[str, Callable[[Gpu], str]], ...] = (
    ("model", lambda gpu: gpu.name),
    ("state", _state),
    ("memory, GiB", lambda gpu: _gib(gpu.memory_total)),
    ("used, GiB", lambda gpu: _gib(gpu.memory_used)),
    ("temperature, °C", lambda gpu: _number(gpu.temperature)),
    ("slowdown at, °C", lambda gpu: _number(gpu.temperature_slowdown)),
    ("SM clock, MHz", lambda gpu: _number(gpu.sm_clock)),
    ("maximum clock, MHz", lambda gpu: _number(gpu.sm_clock_maximum)),
    ("throttled by", _throttling),
    ("power, W", lambda gpu: _number(gpu.power)),
    ("power limit, W", lambda gpu: _number(gpu.power_limit)),
    ("default limit, W", lambda gpu: _number(gpu.power_default)),
    ("PCIe", _pcie),
    ("PCIe maximum", _pcie_possible),
    ("NVLinks", _nvlinks),
    ("NVLinks active", _nvlinks_active),
    ("fabric", _fabric),
    ("ECC errors", _ecc),
    ("rows remapped", _rows_remapped),
    ("recovery action", _recovery),
    ("MIG", _mig),
)
