"""The kernel log, as /dev/kmsg and journalctl give it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ddoctor.collect import CannotSee
from ddoctor.collect.kernel_log import kernel_log
from tests.driver import KERNEL_LOGS

JOURNAL = """\
#!/bin/sh
cat <<'END'
[   12.000001] node-1 kernel: Linux version 6.8.0
[   31.210000] node-1 kernel: NVRM: Xid (PCI:0000:52:00): 48, pid=77, DBE (double bit error)
END
"""


def log(folder: Path, *messages: str) -> Path:
    """Records as /dev/kmsg gives them, one second after the other, from the boot on."""
    file = folder / "kmsg"
    records = (f"4,{n},{n * 1_000_000},-;{text}" for n, text in enumerate(messages, 1))
    file.write_text("\n".join((*records, " SUBSYSTEM=pci", " DEVICE=+pci:0000:00:03.0", "")))
    return file


def test_the_xid_of_a_gpu_that_fell_off_the_bus() -> None:
    seen = kernel_log(KERNEL_LOGS / "xid_79.txt")
    assert [(xid.bus_id, xid.code) for xid in seen.xids] == [
        ("0000:52:00.0", 79),
        ("0000:52:00.0", 154),
    ]
    assert "fallen off the bus" in seen.xids[0].text
    assert seen.xids[0].age is not None
    assert seen.xids[0].age > 0


@pytest.mark.parametrize(
    ("line", "bus_id", "code"),
    [
        ("NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row", "0000:10:1c.0", 63),
        ("NVRM: Xid (0000:03:00): 31, Ch 0000000b, engmask 00000120", "0000:03:00.0", 31),
        ("NVRM: Xid (PCI:0008:01:00): 119, pid=9, Timeout", "0008:01:00.0", 119),
        ("NVRM: Xid (PCI:0000:C3:00): 43, pid=5", "0000:c3:00.0", 43),
    ],
)
def test_forms_of_an_xid(tmp_path: Path, line: str, bus_id: str, code: int) -> None:
    (xid,) = kernel_log(log(tmp_path, "boot", line)).xids
    assert (xid.bus_id, xid.code) == (bus_id, code)


def test_pcie_errors_are_counted_by_device_and_severity(tmp_path: Path) -> None:
    corrected = (
        "pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, "
        "(Transmitter ID)"
    )
    newer = "pcieport 0000:00:03.0: PCIe Bus Error: severity=Correctable, type=Physical Layer"
    fatal = "nvidia 0000:1b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction"
    nonfatal = "nvidia 0000:1b:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Non-Fatal)"
    seen = kernel_log(log(tmp_path, corrected, "other", newer, fatal, nonfatal)).pcie_errors
    assert [(row.bus_id, row.severity, row.count) for row in seen] == [
        ("0000:00:03.0", "corrected", 2),
        ("0000:1b:00.0", "fatal", 1),
        ("0000:1b:00.0", "nonfatal", 1),
    ]
    assert seen[0].span == pytest.approx(2.0)
    assert all(row.age is not None for row in seen)


@pytest.mark.parametrize(
    "line",
    [
        "Out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:2kB",
        "Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB",
        "Memory cgroup out of memory: Kill process 4711 (python) score 999 or sacrifice child",
    ],
)
def test_processes_killed_for_memory(tmp_path: Path, line: str) -> None:
    (kill,) = kernel_log(log(tmp_path, line)).oom_kills
    assert "4711 (python)" in kill


def test_only_what_came_within_some_time(tmp_path: Path) -> None:
    lines = [f"Out of memory: Killed process {pid} (python)" for pid in (1, 2, 3)]
    file = log(tmp_path, *lines)
    age = time.clock_gettime(time.CLOCK_MONOTONIC)
    # One second after the other since the boot.
    assert len(kernel_log(file).oom_kills) == 3
    assert kernel_log(file, within=age - 1.5).oom_kills == tuple(lines[1:])


def test_nothing_of_note(tmp_path: Path) -> None:
    seen = kernel_log(
        log(
            tmp_path,
            "nvidia: loading out-of-tree module taints kernel.",
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15",
            "pcieport 0000:00:01.0: AER: enabled with IRQ 26",
            "Killed by the user: not for memory",
        )
    )
    assert (seen.xids, seen.pcie_errors, seen.oom_kills) == ((), (), ())


@pytest.mark.skipif(
    os.getuid() != 0 or not os.access("/dev/kmsg", os.R_OK), reason="root may read /dev/kmsg"
)
def test_the_real_log_of_this_machine_is_read_to_its_end() -> None:
    assert kernel_log().source == "/dev/kmsg"


def test_the_journal_where_the_device_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "journalctl"
    program.write_text(JOURNAL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    seen = kernel_log(tmp_path / "absent")
    assert seen.source == "journalctl"
    assert [(xid.bus_id, xid.code) for xid in seen.xids] == [("0000:52:00.0", 48)]


def test_says_why_where_neither_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotSee, match=r"No such file or directory; journalctl.*root"):
        kernel_log(tmp_path / "absent")
