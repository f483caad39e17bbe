"""`dmesg`, `dmesg -T`, `journalctl -k`: the kernel's messages about GPUs and memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec.structs import replace

from ddoctor.analysis.kernel_messages import KernelLine, log_of
from ddoctor.evidence.gpus import KernelLog
from ddoctor.reading.machine.kind import Kind
from ddoctor.reading.prefixes import HOST

HEAD = (
    r"^(?:<\d{1,3}>)?(?:\[ *(?P<up>\d{1,10}\.\d{1,9})\] ?"
    r"|\[(?P<date>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] "
    # A time in ISO 8601 is taken off before, as of a container's log.
    rf"|(?:(?P<stamp>[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d) )?"
    rf"(?P<host>{HOST}) kernel: (?:\[ *\d{{1,10}}\.\d{{1,9}}\] )?)"
)
LINE = re.compile(rf"{HEAD}(?P<text>.{{0,1000}})")


def _read(lines: Sequence[str]) -> Iterator[KernelLog]:
    hosts: dict[str, list[KernelLine]] = {}
    for line in lines:
        if match := LINE.match(line):
            hosts.setdefault(match["host"] or "", []).append(
                KernelLine(_time(match), match["text"])
            )
    for host, rows in hosts.items():
        yield replace(log_of("the kernel log", rows, None), host=host)


def _time(match: re.Match[str]) -> float | None:
    """Seconds since the boot, or since another moment that is the same for all lines."""
    if match["up"]:
        return float(match["up"])
    try:
        if match["date"]:
            return datetime.strptime(match["date"], "%a %b %d %H:%M:%S %Y").timestamp()
        if not match["stamp"]:
            return None
        # The year is not told, and may be a leap year.
        return datetime.strptime(f"2000 {match['stamp']}", "%Y %b %d %H:%M:%S").timestamp()
    except (OverflowError, OSError, ValueError):
        return None


KIND = Kind(
    name="dmesg",
    holds=("nvrm: xid", "pcie bus error", "out of memory: kill"),
    begins=re.compile(rf"{HEAD}.{{0,200}}(?:NVRM: Xid|PCIe Bus Error: |[Oo]ut of memory: Kill)"),
    goes_on=re.compile(r"(?!)"),
    read=_read,
    scattered=True,
)
