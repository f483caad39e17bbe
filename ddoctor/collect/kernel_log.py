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

from ddoctor.analysis.kernel_messages import KernelLine, log_of
from ddoctor.collect import CannotSee, programs
from ddoctor.evidence.gpus import KernelLog

RECORD_BYTES = 16 * 1024
"""A record that does not fit its buffer is refused; the kernel's longest is 8 KiB."""

JOURNAL_LIMIT_SECONDS = 10


def kernel_log(device: Path = Path("/dev/kmsg"), *, within: float = inf) -> KernelLog:
    """The kernel's messages, since boot or of the last seconds, as far as the buffer reaches."""
    try:
        source, lines = str(device), list(_parsed(_read(device)))
    except OSError as error:
        source, lines = "journalctl", list(_journal(f"{device}: {error.strerror}"))
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    lines = [line for line in lines if line.time is not None and now - line.time <= within]
    return log_of(source, lines, now)


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
        done = programs.run(command, seconds=JOURNAL_LIMIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotSee(f"{why}; journalctl: {type(error).__name__}; root can read it") from None
    if not done.stdout.strip():
        raise CannotSee(f"{why}; journalctl shows no kernel messages; root can read them")
    for line in done.stdout.splitlines():
        found = re.match(r"\[\s*(\d+\.\d+)\] \S+ kernel: (.*)", line)
        if found:
            yield KernelLine(float(found.group(1)), found.group(2))


COLLECTORS = (kernel_log,)
