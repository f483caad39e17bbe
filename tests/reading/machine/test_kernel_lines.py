"""The kernel's messages: with the state of the GPUs, and without."""

from __future__ import annotations

import pytest

from ddoctor.evidence.gpus import KernelLog
from ddoctor.models import Severity
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read
from tests.reading.machine.nvidia_smi_texts import Card, query, table

UP = "[ 1843.308145] "
DATE = "[Tue Aug 26 15:40:52 2025] "
JOURNAL = "Aug 26 15:40:52 node-3 kernel: "
FORMS = [UP, DATE, JOURNAL, "2025-08-26T15:40:52+0000 node-3 kernel: "]
XID = "NVRM: Xid (PCI:0000:2a:00): {code}, pid=4711, name=python3, {text}"
KILL = "Out of memory: Killed process {pid} ({name}) total-vm:90204kB, anon-rss:80112kB"
BUS_ERROR = (
    "pcieport 0000:16:01.0: AER: PCIe Bus Error: severity=Corrected, type=Data Link Layer, id=0"
)
H100 = Card(name="NVIDIA H100 80GB HBM3", total=81559, power="70W / 700W")


@pytest.mark.parametrize("head", FORMS)
def test_messages_of_each_form(read: Read, head: str) -> None:
    text = "\n".join(
        [
            f"{head}Linux version 6.8.0-45-generic",
            head + XID.format(code=31, text="Ch 00000008, MMU Fault"),
            f"{head}usb 1-1: new high-speed USB device",
            head + BUS_ERROR,
            head + KILL.format(pid=77, name="python3"),
        ]
    )
    (log,) = read(text).all(KernelLog)
    assert [(one.bus_id, one.code) for one in log.xids] == [("0000:2a:00.0", 31)]
    assert [(one.bus_id, one.count) for one in log.pcie_errors] == [("0000:16:01.0", 1)]
    assert len(log.oom_kills) == 1
    assert log.host == ("node-3" if "node-3" in head else "")


@pytest.mark.parametrize("head", [UP, DATE])
def test_an_xid_is_told_once_with_the_gpu(diagnose: Diagnose, head: str) -> None:
    line = head + XID.format(code=48, text="DBE (double bit error)")
    report = diagnose(f"{table('550.54.15', [H100] * 2)}\n{line}\n")
    (finding,) = report.findings
    assert (finding.cause, finding.where.devices) == ("gpu-hardware-fault", ("cuda:1",))
    assert "Xid 48" in finding.because


def test_a_gpu_that_is_no_longer_listed(diagnose: Diagnose) -> None:
    line = UP + XID.format(code=79, text="GPU has fallen off the bus.").replace("2a", "5d")
    (finding,) = diagnose(f"{line}\n{table('550.54.15', [H100] * 2)}").findings
    assert (finding.cause, finding.where.devices) == ("gpu-hardware-fault", ("0000:5d:00.0",))


def test_an_xid_alone_is_told_by_its_line(diagnose: Diagnose) -> None:
    (finding,) = diagnose(UP + XID.format(code=79, text="GPU has fallen off the bus.")).findings
    assert (finding.cause, finding.because.split(":")[0]) == ("gpu-hardware-fault", "train.log")


def test_an_error_that_a_reset_has_mended_is_a_note(diagnose: Diagnose) -> None:
    line = UP + XID.format(code=48, text="DBE (double bit error)")
    report = diagnose(query({}, {}) + f"\n{line}\n")
    assert [one.severity for one in report.findings] == [Severity.NOTE]


def test_a_killed_rank_is_told_once(diagnose: Diagnose) -> None:
    kill = KILL.format(pid=4712, name="pt_main_thread")
    report = diagnose(
        f"""
        torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
        train.py FAILED
        Root Cause (first observed failure):
        [0]:
          time      : 2025-08-26_15:40:53
          rank      : 1 (local_rank: 1)
          exitcode  : -9 (pid: 4712)
          error_file: <N/A>
        [Tue Aug 26 15:40:52 2025] {kill}
        """
    )
    assert [one.cause for one in report.findings].count("host-ram-oom") == 1
    assert "4712" in report.findings[0].because


@pytest.mark.parametrize(
    "line",
    [
        XID.format(code=31, text="Ch 00000008, MMU Fault"),
        XID.format(code=43, text="Ch 00000008"),
        XID.format(code=13, text="Graphics SM Warp Exception"),
        KILL.format(pid=77, name="chrome"),
        BUS_ERROR,
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
        "nvidia-nvswitch0: open (major=235)",
    ],
)
@pytest.mark.parametrize("head", FORMS)
def test_harmless_messages_raise_no_alarm(diagnose: Diagnose, head: str, line: str) -> None:
    report = diagnose(f"{table('535.104.05', [H100] * 2)}\n{head}{line}\n")
    assert [one for one in report.findings if one.severity > Severity.NOTE] == []
