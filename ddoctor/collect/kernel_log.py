"""The kernel log: Xids, PCIe errors, and processes killed for lack of memory."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple

from ddoctor.collect import CannotSee
from ddoctor.evidence.gpus import KernelLog, PcieErrors, XidEvent

RECORD_BYTES = 16 * 1024
"""A record that does not fit its buffer is refused; the kernel's longest is 8 KiB."""

JOURNAL_LIMIT_SECONDS = 10

XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,9}),?\s*(.*)")
PCIE = re.compile(
    r"\S+ ([0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): (?:AER: )?PCIe Bus Error: "
    r"severity=(Correct|Uncorrect)\w+(?: \((Non-Fatal|Fatal)\))?"
)
"""Linux writes "Corrected" up to 6.15 and "Correctable" since."""
OUT_OF_MEMORY = re.compile(r"[Oo]ut of memory: Kill(?:ed)? process \d+ .*")

Severity = Literal["corrected", "nonfatal", "fatal"]


class KernelLine(NamedTuple):
    """One message, and its time in seconds after the boot."""

    time: float
    text: str


def kernel_log(device: Path = Path("/dev/kmsg"), *, within: float = inf) -> KernelLog:
    """The kernel's messages, since boot or of the last seconds, as far as the buffer reaches."""
    try:
        source, lines = str(device), list(_parsed(_read(device)))
    except OSError as error:
        source, lines = "journalctl", list(_journal(f"{device}: {error.strerror}"))
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    lines = [line for line in lines if now - line.time <= within]
    return KernelLog(
        source=source,
        xids=tuple(_xids(lines, now)),
        pcie_errors=tuple(_pcie_errors(lines, now)),
        oom_kills=tuple(
            found.group() for _, text in lines if (found := OUT_OF_MEMORY.search(text))
        ),
    )


def _read(device: Path) -> str:
    """All records without waiting for the next one."""
    records = [b""]
    with open(os.open(device, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as opened:
        more: bytes | None = b""
        while more is not None:
            # A record that was overwritten while it was read breaks the pipe: the next one follows.
            with suppress(BrokenPipeError):
                more = opened.read(RECORD_BYTES) or None
                records.append(more or b"")
    return b"".join(records).decode(errors="replace")


def _parsed(records: str) -> Iterator[KernelLine]:
    """``priority,sequence,microseconds,flags;message`` (Documentation/ABI/testing/dev-kmsg)."""
    for record in records.splitlines():
        head, separator, text = record.partition(";")
        fields = head.split(",")
        if separator and len(fields) >= 3 and fields[2].isdigit():
            yield KernelLine(int(fields[2]) / 1e6, text)


def _journal(why: str) -> Iterator[KernelLine]:
    """The kernel's part of the journal: members of adm and systemd-journal may read it."""
    command = ["journalctl", "--dmesg", "--quiet", "--no-pager", "--output=short-monotonic"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=JOURNAL_LIMIT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotSee(f"{why}; journalctl: {type(error).__name__}; root can read it") from None
    if not done.stdout.strip():
        raise CannotSee(f"{why}; journalctl shows no kernel messages; root can read them")
    for line in done.stdout.splitlines():
        found = re.match(r"\[\s*(\d+\.\d+)\] \S+ kernel: (.*)", line)
        if found:
            yield KernelLine(float(found.group(1)), found.group(2))


def _xids(lines: list[KernelLine], now: float) -> Iterator[XidEvent]:
    for when, text in lines:
        found = XID.search(text)
        if found:
            bus_id, code, message = found.groups()
            yield XidEvent(
                # NVRM leaves the PCI function out, and a GPU's is 0.
                bus_id=bus_id.lower() if "." in bus_id else f"{bus_id.lower()}.0",
                code=int(code),
                text=message,
                age=max(0.0, now - when),
            )


def _pcie_errors(lines: list[KernelLine], now: float) -> Iterator[PcieErrors]:
    times: dict[tuple[str, Severity], list[float]] = {}
    for when, text in lines:
        found = PCIE.search(text)
        if found:
            bus_id, corrected, fatal = found.groups()
            uncorrected: Severity = "fatal" if fatal == "Fatal" else "nonfatal"
            severity: Severity = "corrected" if corrected == "Correct" else uncorrected
            times.setdefault((bus_id, severity), []).append(when)
    for (bus_id, severity), seen in times.items():
        yield PcieErrors(
            bus_id=bus_id,
            severity=severity,
            count=len(seen),
            span=max(seen) - min(seen),
            age=max(0.0, now - max(seen)),
        )


COLLECTORS = (kernel_log,)
