"""`nvidia-smi --query-gpu=… --format=csv`: a row for each GPU, below the names of the columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddoctor.evidence.gpus import Gpu, Gpus, PcieLink
from ddoctor.reading.machine.kind import Kind, bus_id, decimal, flag, known, mebibytes, number

# Without the unit, "uuid" stands for "gpu_uuid" (nvidia-smi --help-query-gpu).
ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.current.mem": "clocks.current.memory",
    "clocks.max.mem": "clocks.max.memory",
    "enforced.power.limit": "power.limit",
}
NUMBERS = {
    "utilization.gpu": "utilisation",
    "temperature.gpu": "temperature",
    "clocks.current.sm": "sm_clock",
    "clocks.max.sm": "sm_clock_maximum",
    "clocks.current.memory": "memory_clock",
    "clocks.max.memory": "memory_clock_maximum",
    "ecc.errors.uncorrected.volatile.total": "ecc_uncorrected_volatile",
    "ecc.errors.uncorrected.aggregate.total": "ecc_uncorrected_aggregate",
    "ecc.errors.corrected.volatile.total": "ecc_corrected_volatile",
    "remapped_rows.uncorrectable": "rows_remapped",
}
WATTS = {"power.draw": "power", "power.limit": "power_limit"}
FLAGS = {
    "ecc.mode.current": "ecc_enabled",
    "mig.mode.current": "mig",
    "persistence_mode": "persistence",
    "remapped_rows.failure": "remap_failed",
}
PENDING = ("remapped_rows.pending", "retired_pages.pending")
REASONS = re.compile(r"clocks_(?:throttle|event)_reasons\.(?P<name>[a-z_]{1,40})")
REASON_NAMES = (
    *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost"),
    *("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"),
)
LOST = re.compile(r"\[?GPU is lost\]?", re.I)
IDENTITIES = ("index", "pci.bus_id", "uuid")


def _read(lines: Sequence[str]) -> Iterator[Gpus]:
    columns = [_column(one) for one in lines[0].split(",")]
    if not any(one in columns for one in IDENTITIES):
        # Nothing tells the rows of several GPUs from several rows of one.
        return
    rows: dict[str, Mapping[str, str]] = {}
    for line in lines[1:]:
        # With -l there are several rows of each GPU, and the last one counts.
        cells = [one.strip() for one in line.split(",")]
        if len(cells) == len(columns):
            row = dict(zip(columns, cells, strict=True))
            rows[next(row[one] for one in IDENTITIES if one in row)] = row
    gpus = tuple(_gpu(place, row) for place, row in enumerate(rows.values()))
    if gpus:
        drivers = (known(row.get("driver_version", "")) for row in rows.values())
        yield Gpus(driver=next(drivers), gpus=gpus)


def _column(title: str) -> str:
    name = title.partition("[")[0].strip().lower()
    return ALIASES.get(name, name)


def _gpu(place: int, row: Mapping[str, str]) -> Gpu:
    index = number(row.get("index", ""))
    fields: dict[str, Any] = {
        "index": place if index is None else index,
        "name": known(row.get("name", "")),
        "uuid": known(row.get("uuid", "")),
        "bus_id": bus_id(row.get("pci.bus_id", "")),
        "memory_total": mebibytes(row.get("memory.total", "")) or 0,
        "memory_used": mebibytes(row.get("memory.used", "")) or 0,
        "memory_reserved": mebibytes(row.get("memory.reserved", "")) or 0,
    }
    if any(LOST.fullmatch(value) for value in row.values()):
        return Gpu(**fields, lost=True, error="GPU_IS_LOST")
    fields |= {field: number(row[name]) for name, field in NUMBERS.items() if name in row}
    fields |= {field: decimal(row[name]) for name, field in WATTS.items() if name in row}
    fields |= {field: flag(row[name]) for name, field in FLAGS.items() if name in row}
    fields["power_default"] = decimal(row.get("power.default_limit", ""))
    fields["performance_state"] = number(row.get("pstate", "").removeprefix("P"))
    fields["remap_pending"] = next((flag(row[one]) for one in PENDING if one in row), None)
    if capability := re.fullmatch(r"(\d{1,3})\.(\d{1,3})", row.get("compute_cap", "")):
        fields["capability"] = (int(capability[1]), int(capability[2]))
    reasons = {
        match["name"]: value for name, value in row.items() if (match := REASONS.fullmatch(name))
    }
    if any(flag(reasons.get(name, "")) is not None for name in REASON_NAMES):
        fields["throttle_reasons"] = tuple(
            name for name in REASON_NAMES if flag(reasons.get(name, ""))
        )
    if any(name.startswith("pcie.link.") for name in row):
        fields["pcie"] = PcieLink(
            generation=number(row.get("pcie.link.gen.current", "")),
            maximum_generation=number(row.get("pcie.link.gen.max", "")),
            width=number(row.get("pcie.link.width.current", "")),
            maximum_width=number(row.get("pcie.link.width.max", "")),
        )
    return Gpu(**fields)


COLUMN = r"[a-z_]{2,30}(?:\.[a-z_0-9]{1,40}){0,5}(?: \[[^\],]{1,10}\])?"
KIND = Kind(
    name="nvidia-smi --query-gpu",
    holds=("index, ", "bus_id", "uuid"),
    begins=re.compile(rf"^(?=.*(?:\bindex\b|uuid|bus_id)){COLUMN}(?:, ?{COLUMN}){{1,60}}\s*$"),
    goes_on=re.compile(r"^(?! )[^,|={}]{1,200}(?:,[^,|={}]{0,201}){1,60}$"),
    read=_read,
)
