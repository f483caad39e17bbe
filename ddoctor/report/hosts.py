"""Hosts and GPUs side by side: the tables of the formats that have room for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.section import Evidence
from ddoctor.models import Report
from ddoctor.report.machine import ALIKE, MACHINE, SHARED_MEMORY
from ddoctor.report.wording import Grid, size

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


def host_table(evidence: Evidence) -> Grid:
    """Return the known properties of each host, a row per host; of one host, none.

    Of many hosts, only those that differ from the majority, and the properties that differ.
    """
    hosts = evidence.hosts
    few = len(hosts) <= SIDE_BY_SIDE
    columns: dict[str, tuple[str, ...]] = {}
    for label, of in {**MACHINE, **(SHARED_MEMORY if few else ALIKE)}.items():
        values = tuple(of(evidence, host) for host in hosts)
        if any(values if few else _odd(values)):
            columns[label] = values
    rows = tuple(zip(hosts, *columns.values(), strict=True))
    if not few:
        odd = zip(*map(_odd, columns.values()), strict=True)
        rows = tuple(row for row, differs in zip(rows, odd, strict=False) if any(differs))
    return Grid(
        title="Hosts" if few else "Hosts that differ from the majority",
        head=("host", *columns),
        rows=rows[:SIDE_BY_SIDE] if len(hosts) > 1 else (),
    )


def gpus(report: Report, evidence: Evidence) -> tuple[Gpus, ...]:
    """Return the GPUs of the hosts to show in detail."""
    every = (evidence.of(Gpus, host) for host in close_up(report, evidence))
    return tuple(section for section in every if section is not None and section.gpus)


def gpu_tables(section: Gpus) -> tuple[Grid, Grid, Grid]:
    """Return the properties that differ, a column per GPU; those that do not; the processes."""
    values = {label: tuple(map(of, section.gpus)) for label, of in GPU_PROPERTIES.items()}
    known = {label: row for label, row in values.items() if any(row)}
    differing = [(label, *row) for label, row in known.items() if len(set(row)) > 1]
    return (
        Grid(
            head=("GPU", *(str(gpu.index) for gpu in section.gpus)),
            rows=tuple(differing),
            odd=frozenset(
                (number, column)
                for number, (_, *row) in enumerate(differing)
                for column, odd in enumerate(_odd(row), start=1)
                if odd
            ),
        ),
        Grid(
            head=("same on all", ""),
            rows=tuple((label, row[0]) for label, row in known.items() if len(set(row)) == 1),
        ),
        Grid(
            head=("GPU", "process", "user", "memory", "holder"),
            rows=tuple(
                (
                    f"GPU {gpu.index}",
                    f"{one.pid} {one.name}",
                    one.user,
                    "" if one.memory is None else size(one.memory),
                    one.holder,
                )
                for gpu in section.gpus
                for one in gpu.processes or ()
            ),
        ),
    )


def _odd(values: Sequence[str]) -> tuple[bool, ...]:
    """Return which values differ from the majority; none if there is no majority."""
    usual, times = Counter(values).most_common(1)[0]
    majority = 2 * times > len(values)
    return tuple(majority and value != usual for value in values)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _gib(value: int) -> str:
    return f"{value / 2**30:.1f}"


def _throttling(gpu: Gpu) -> str:
    if gpu.throttle_reasons is None:
        return ""
    words = (THROTTLED_BY.get(reason, reason) for reason in gpu.throttle_reasons)
    return ", ".join(dict.fromkeys(words)).replace("_", " ") or "no"


def _pcie(generation: int | None, width: int | None) -> str:
    return "" if generation is None or width is None else f"{generation} ×{width}"


def _ecc(gpu: Gpu) -> str:
    return "off" if gpu.ecc_enabled is False else _number(gpu.ecc_uncorrected_volatile)


def _rows_remapped(gpu: Gpu) -> str:
    state = "failed" if gpu.remap_failed else "pending" if gpu.remap_pending else ""
    return f"{_number(gpu.rows_remapped)} {state}".strip()


def _fabric(gpu: Gpu) -> str:
    if gpu.fabric_state in (None, "not_supported"):
        return ""
    parts = (gpu.fabric_state, gpu.fabric_status, *gpu.fabric_trouble)
    return ", ".join(filter(None, parts)).replace("_", " ")


GPU_PROPERTIES: Mapping[str, Callable[[Gpu], str]] = {
    "model": lambda gpu: gpu.name,
    "state": lambda gpu: f"lost {gpu.error}".rstrip() if gpu.lost else "ok",
    "memory, GiB": lambda gpu: _gib(gpu.memory_total),
    "used, GiB": lambda gpu: _gib(gpu.memory_used),
    "temperature, °C": lambda gpu: _number(gpu.temperature),
    "slowdown at, °C": lambda gpu: _number(gpu.temperature_slowdown),
    "SM clock, MHz": lambda gpu: _number(gpu.sm_clock),
    "maximum clock, MHz": lambda gpu: _number(gpu.sm_clock_maximum),
    "throttled by": _throttling,
    "power, W": lambda gpu: _number(gpu.power),
    "power limit, W": lambda gpu: _number(gpu.power_limit),
    "default limit, W": lambda gpu: _number(gpu.power_default),
    "PCIe": lambda gpu: _pcie(gpu.pcie.generation, gpu.pcie.width) if gpu.pcie else "",
    "PCIe maximum": lambda gpu: (
        _pcie(gpu.pcie.maximum_generation, gpu.pcie.maximum_width) if gpu.pcie else ""
    ),
    "NVLinks": lambda gpu: "" if gpu.nvlinks is None else str(len(gpu.nvlinks)),
    "NVLinks active": lambda gpu: (
        "" if gpu.nvlinks is None else str(sum(link.active for link in gpu.nvlinks))
    ),
    "fabric": _fabric,
    "ECC errors": _ecc,
    "rows remapped": _rows_remapped,
    "recovery action": lambda gpu: (gpu.recovery_action or "").replace("_", " "),
    "MIG": lambda gpu: "" if gpu.mig is None else "on" if gpu.mig else "off",
}
