"""ulimit, df and free: of this machine, and by hand."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess

import psutil
import pytest

from ddoctor.evidence.host import Disks, Limits, Memory, SharedMemory
from ddoctor.models import Severity
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read

GIB = 2**30


def shell(command: str) -> str:
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
    )
    return done.stdout


def test_the_limits_of_this_shell(read: Read) -> None:
    (section,) = read(shell("ulimit -a")).all(Limits)
    soft = {
        "open_files": resource.RLIMIT_NOFILE,
        "processes": resource.RLIMIT_NPROC,
    }
    for name, which in soft.items():
        value = resource.getrlimit(which)[0]
        limit = getattr(section, name).soft
        assert limit == (None if value == resource.RLIM_INFINITY else value)
    assert section.unseen


ZSH = """-t: cpu time (seconds)              unlimited
-f: file size (blocks)              unlimited
-c: core file size (blocks)         0
-m: resident set size (kbytes)      unlimited
-u: processes                       96365
-n: file descriptors                1024
-l: locked-in-memory size (kbytes)  8192
-v: address space (kbytes)          unlimited
"""
DASH = """time(seconds)        unlimited
file(blocks)         unlimited
coredump(blocks)     0
memory(kbytes)       unlimited
locked memory(kbytes) 8192
process              96365
nofiles              1024
"""
BASH = """core file size          (blocks, -c) 0
data seg size           (kbytes, -d) unlimited
file size               (blocks, -f) unlimited
max locked memory       (kbytes, -l) {locked}
open files                      (-n) {files}
pipe size            (512 bytes, -p) 8
stack size              (kbytes, -s) 8192
max user processes              (-u) 96365
"""


@pytest.mark.parametrize("text", [ZSH, DASH, BASH.format(locked=8192, files=1024)])
def test_the_limits_of_other_shells(read: Read, text: str) -> None:
    (section,) = read(text).all(Limits)
    assert section.open_files.soft == 1024
    assert section.locked_memory.soft == 8 * 2**20
    assert section.processes.soft == 96365


@pytest.mark.parametrize("files", ["1024", "1048576", "unlimited"])
@pytest.mark.parametrize("locked", ["64", "8192", "unlimited"])
def test_usual_limits_raise_no_alarm(diagnose: Diagnose, files: str, locked: str) -> None:
    assert diagnose(BASH.format(files=files, locked=locked)).findings == ()


def test_too_few_open_files(diagnose: Diagnose) -> None:
    (finding,) = diagnose(BASH.format(files=256, locked=8192)).findings
    assert finding.cause == "file-descriptor-limit-low"
    assert "ulimit -Hn" in finding.fixes[0].caution


def test_low_locked_memory_of_some_shell_is_a_note(diagnose: Diagnose) -> None:
    text = BASH.format(files=4096, locked=64) + IBSTAT.format(state="Active")
    (finding,) = diagnose(text).findings
    assert (finding.cause, finding.severity) == ("memlock-limit-too-low", Severity.NOTE)


IBSTAT = """CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tHardware version: 0
\tNode GUID: 0xa088c2030009605fc
\tPort 1:
\t\tState: {state}
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 12
\t\tLink layer: InfiniBand
"""


@pytest.mark.parametrize("options", ["", "-h", "-hT", "-i", "-k", "-BM", "-a"])
def test_the_file_systems_of_this_machine(read: Read, options: str) -> None:
    text = shell(f"df {options}")
    evidence = read(text)
    (section,) = evidence.all(Disks)
    (root,) = [disk for disk in section.disks if disk.mount == "/"]
    usage = shutil.disk_usage("/")
    if options == "-i":
        assert root.files == os.statvfs("/").f_files
    else:
        assert abs(root.size - usage.total) < 0.02 * usage.total
        shm = os.statvfs("/dev/shm")
        (shared,) = evidence.all(SharedMemory)
        assert abs(shared.size - shm.f_blocks * shm.f_frsize) < 0.05 * shared.size


HEAD = "Filesystem      Size  Used Avail Use% Mounted on\n"


@pytest.mark.parametrize(
    "rows",
    [
        "/dev/nvme0n1p2  1.8T  1.7T   88G  96% /\n",
        "/dev/loop3       64M   64M     0 100% /snap/core20/1974\n"
        "/dev/sda1       2.0G  1.9G     0 100% /boot\n",
        "tmpfs           5.0M  5.0M     0 100% /run/lock\nudev   504G     0  504G   0% /dev\n",
        "/dev/sda2        50G   49G  100M  99% /etc/hosts\n",
        "tmpfs           252G   12K  252G   1% /dev/shm\noverlay   4.0K 4.0K 0 100% /opt/marker\n",
        "10.0.0.9:/data/sets  80T   80T     0 100% /datasets\n",
        "store.example.org:/exports/home/projects/a-long-name\n"
        "                 20T   17T  3.0T  85% /home\n",
    ],
)
def test_usual_file_systems_raise_no_alarm(diagnose: Diagnose, rows: str) -> None:
    report = diagnose(HEAD + rows)
    assert [one for one in report.findings if one.severity > Severity.NOTE] == []


def test_a_full_disk(diagnose: Diagnose) -> None:
    report = diagnose(f"{HEAD}/dev/nvme0n1p2  1.8T  1.8T   20M 100% /\n")
    (finding,) = report.findings
    assert (finding.cause, finding.severity) == ("disk-full-or-slow", Severity.WARNING)


def test_a_full_disk_of_a_run(diagnose: Diagnose) -> None:
    failure = "[rank0]: OSError: [Errno 28] No space left on device: 'step_1000.pt'"
    rows = "/dev/sdb  10T  10T  0 100% /scratch\n/dev/sda 1.0T 0.2T 0.8T 20% /\n"
    report = diagnose(f"{failure}\n{HEAD}{rows}")
    assert [one.cause for one in report.findings] == ["disk-full-or-slow"]
    assert report.findings[0].severity is Severity.ERROR
    assert "/scratch" in report.findings[0].because


def test_no_inodes(diagnose: Diagnose) -> None:
    head = "Filesystem      Inodes   IUsed   IFree IUse% Mounted on\n"
    report = diagnose(f"{head}/dev/nvme0n1p2  121036800 121036790 10  100% /\n")
    (finding,) = report.findings
    assert "only 10 of 121036800 inodes" in finding.because


@pytest.mark.parametrize("size", ["64M", "512M"])
def test_small_shared_memory(diagnose: Diagnose, size: str) -> None:
    (finding,) = diagnose(f"{HEAD}shm  {size}  0  {size}  0% /dev/shm\n").findings
    assert (finding.cause, finding.severity) == ("shm-too-small", Severity.WARNING)


def test_small_shared_memory_of_a_run_is_told_once(diagnose: Diagnose) -> None:
    failure = "RuntimeError: unable to write to file </torch_42>: No space left on device (28)"
    report = diagnose(f"{failure}\n{HEAD}shm  512M  511M  1M  99% /dev/shm\n")
    assert [one.cause for one in report.findings] == ["shm-too-small"]
    assert "train.log:1" in report.findings[0].because
    assert report.findings[0].severity is Severity.ERROR


@pytest.mark.parametrize("options", ["", "-m", "-h", "-hw"])
def test_the_memory_of_this_machine(read: Read, options: str) -> None:
    total = psutil.virtual_memory().total
    found = read(shell(f"free {options}")).all(Memory)
    if options == "-hw":  # it has other columns
        assert found == ()
    else:
        assert abs(found[0].total - total) < 0.05 * total


def test_memory_in_an_unknown_unit(read: Read) -> None:
    head = "              total        used        free      shared  buff/cache   available\n"
    row = "Mem:            503         101         300           1         102         400\n"
    assert read(head + row).all(Memory) == ()
