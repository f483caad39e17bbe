"""Messages of the kernel about GPUs and about processes killed for lack of memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from ddoctor.evidence.gpus import Gpus, KernelLog, PcieErrors, XidEvent
from ddoctor.evidence.log import LogEvent

XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,9}),?\s*(.*)")
PCIE = re.compile(
    r"\S+ ([0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): (?:AER: )?PCIe Bus Error: "
    r"severity=(Correct|Uncorrect)\w+(?: \((Non-Fatal|Fatal)\))?"
)
"""Linux writes "Corrected" up to 6.15 and "Correctable" since."""
OUT_OF_MEMORY = re.compile(r"[Oo]ut of memory: Kill(?:ed)? process \d+ .*")

OFF_THE_BUS = 79
"""The Xid of a GPU that no longer answers on its PCIe bus."""

Severity = Literal["corrected", "nonfatal", "fatal"]


class KernelLine(NamedTuple):
    """One message, and its time in seconds after the boot."""

    time: float | None
    """None: not known."""
    text: str


def bus_id(told: str) -> str:
    """The bus id of a GPU in the kernel's form: NVRM leaves out the PCI function, which is 0."""
    return told.lower() if "." in told else f"{told.lower()}.0"


def not_judged(
    events: Sequence[LogEvent], hosts: Sequence[Gpus], logs: Sequence[KernelLog]
) -> tuple[LogEvent, ...]:
    """The lines without the Xids that are judged together with the state of their GPU."""
    gpus = {gpu.bus_id for section in hosts for gpu in section.gpus}
    # A GPU that fell off the bus is judged by its absence.
    complete = bool(gpus) and "" not in gpus
    judged = {
        (xid.bus_id, xid.code)
        for log in logs
        for xid in log.xids
        if xid.bus_id in gpus or (complete and xid.code == OFF_THE_BUS)
    }
    return tuple(
        event
        for event in events
        if not (found := XID.search(event.text)) or (bus_id(found[1]), int(found[2])) not in judged
    )


def log_of(source: str, lines: Sequence[KernelLine], now: float | None) -> KernelLog:
    """What these messages say; ``now``: the time of the reading, if it is known."""
    return KernelLog(
        source=source,
        xids=tuple(_xids(lines, now)),
        pcie_errors=tuple(_pcie_errors(lines, now)),
        oom_kills=tuple(
            found.group() for _, text in lines if (found := OUT_OF_MEMORY.search(text))
        ),
    )


def _age(when: float | None, now: float | None) -> float | None:
    return None if when is None or now is None else max(0.0, now - when)


def _xids(lines: Sequence[KernelLine], now: float | None) -> Iterator[XidEvent]:
    for when, text in lines:
        if found := XID.search(text):
            bus, code, message = found.groups()
            yield XidEvent(bus_id=bus_id(bus), code=int(code), text=message, age=_age(when, now))


def _pcie_errors(lines: Sequence[KernelLine], now: float | None) -> Iterator[PcieErrors]:
    times: dict[tuple[str, Severity], list[float | None]] = {}
    for when, text in lines:
        if found := PCIE.search(text):
            bus, corrected, fatal = found.groups()
            uncorrected: Severity = "fatal" if fatal == "Fatal" else "nonfatal"
            severity: Severity = "corrected" if corrected == "Correct" else uncorrected
            times.setdefault((bus, severity), []).append(when)
    for (bus, severity), seen in times.items():
        known = [when for when in seen if when is not None]
        yield PcieErrors(
            bus_id=bus,
            severity=severity,
            count=len(seen),
            span=max(known) - min(known) if known else None,
            age=_age(max(known), now) if known else None,
        )
