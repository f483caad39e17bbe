"""Joins what several outputs say about one host: a later one counts, as far as it says more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import NODEFAULT
from msgspec.structs import fields, replace

from ddoctor.evidence.gpus import Gpu, KernelLog
from ddoctor.evidence.host import Disk
from ddoctor.evidence.network import Interface, RdmaDevice, RdmaPort
from ddoctor.evidence.printed import GpuDiagnostic, LinkErrors, NcclTests
from ddoctor.evidence.printed_figures import PrintedMemory, PrintedTimes
from ddoctor.evidence.section import Part, Section
from ddoctor.evidence.software import Package, Variable

SectionType = TypeVar("SectionType", bound=Section)

KEYS: Mapping[type[Part], str] = {
    Gpu: "index",
    Disk: "mount",
    Package: "name",
    Interface: "name",
    RdmaDevice: "name",
    RdmaPort: "number",
    Variable: "name",
    LinkErrors: "name",
}
"""What tells the rows of a list apart; other lists are replaced."""
OF_EVENTS = (KernelLog, NcclTests, GpuDiagnostic, PrintedTimes, PrintedMemory)
"""Sections whose rows are events: none replaces another."""


def merged(earlier: SectionType, later: SectionType) -> SectionType:
    """Both as one; what the later one does not know stays as the earlier one says."""
    together: SectionType = _merged(earlier, later, events=isinstance(earlier, OF_EVENTS))
    return together


def _merged(earlier: Any, later: Any, *, events: bool = False) -> Any:
    changes: dict[str, Any] = {}
    for field in fields(type(later)):
        old, new = getattr(earlier, field.name), getattr(later, field.name)
        if not _says(new, field.default):
            changes[field.name] = old
        elif isinstance(new, tuple) and isinstance(old, tuple):
            changes[field.name] = (*old, *new) if events else _rows(old, new)
        elif isinstance(new, Part) and isinstance(old, Part):
            changes[field.name] = _merged(old, new)
        elif _cut(new) and not _cut(old) and old:
            changes[field.name] = old
    return replace(later, **changes)


def _says(value: object, default: object) -> bool:
    """Whether a value is known; 0 bytes in a field without a default are not reported."""
    if value is None or value == "":
        return False
    return value is False or value != 0 if default is NODEFAULT else value != default


def _cut(value: object) -> bool:
    """Whether it is a name that nvidia-smi cut off."""
    return isinstance(value, str) and value.endswith("...")


def _rows(old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[Any, ...]:
    key = KEYS.get(type(new[0])) if new else None
    if key is None:
        return new
    rows = {getattr(one, key): one for one in old}
    for one in new:
        name = getattr(one, key)
        rows[name] = _merged(rows[name], one) if name in rows else one
    return tuple(rows.values())
