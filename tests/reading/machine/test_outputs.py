"""Where outputs are found, whose they are, and what the report says of them."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ddoctor import engine
from ddoctor.evidence import bundle
from ddoctor.evidence.gpus import Gpus, KernelLog
from ddoctor.evidence.host import Limits
from ddoctor.evidence.log import Log
from ddoctor.evidence.printed import PrintedOutputs
from ddoctor.evidence.section import Evidence
from ddoctor.models import JUDGING, Severity
from ddoctor.reading import reader
from ddoctor.report import training, wording
from tests.conftest import sampled
from tests.healthy.gpus import SECTIONS
from tests.healthy.host import HOST
from tests.reading.conftest import Diagnose
from tests.reading.machine import test_host, test_kernel_lines, test_software
from tests.reading.machine.conftest import Read
from tests.reading.machine.nvidia_smi_texts import Card, csv, query, table
from tests.reading.machine.test_gpu_diagnostic import of_dcgm_4
from tests.reading.machine.test_nccl_tests import printed
from tests.reading.machine.test_nvidia_smi import COLUMNS, ROW, topology
from tests.reading.machine.test_rdma import UP, devinfo, ibstat

SOUND = table("550.54.15", [Card()] * 2)
SICK = table("550.54.15", [Card(), replace(Card(), ecc="7")])
XID = test_kernel_lines.UP + test_kernel_lines.XID.format(code=48, text="DBE")
STEP = "[rank0]:2026-11-25 10:00:01 - INFO - step: {} loss: 3.21 memory: 49.59GiB\n"


def hosts(evidence: Evidence) -> list[tuple[str, int]]:
    """Each host with the uncorrected errors of its second GPU."""
    return [(one.host, one.gpus[1].ecc_uncorrected_volatile or 0) for one in evidence.all(Gpus)]


@pytest.mark.parametrize(
    "prompt",
    [
        "ann@node-7:~/work$ nvidia-smi",
        "(base) ann@node-7:/data$ nvidia-smi",
        "[root@node-7 ~]# nvidia-smi",
        "$ hostname\nnode-7\n$ nvidia-smi",
    ],
)
def test_the_host_of_a_prompt(read: Read, prompt: str) -> None:
    assert hosts(read(f"{prompt}\n{SICK}")) == [("node-7", 7)]


@pytest.mark.parametrize("command", ["ssh node-8 nvidia-smi", "srun -N1 nvidia-smi"])
def test_a_command_on_another_host(read: Read, command: str) -> None:
    assert hosts(read(f"ann@login:~$ {command}\n{SICK}")) == [("", 7)]


def test_prompts_of_several_hosts(read: Read) -> None:
    text = f"ann@node-1:~$ nvidia-smi\n{SOUND}ann@node-2:~$ nvidia-smi\n{SICK}"
    assert hosts(read(text)) == [("node-1", 0), ("node-2", 7)]


def test_kernel_logs_of_several_hosts(read: Read) -> None:
    other = XID.replace("48", "63")
    text = f"ann@node-1:~$ dmesg\n{XID}\nann@node-2:~$ dmesg\n{other}\n"
    logs = read(text).all(KernelLog)
    assert [(one.host, [xid.code for xid in one.xids]) for one in logs] == [
        ("node-1", [48]),
        ("node-2", [63]),
    ]


def test_lines_that_name_the_host(read: Read) -> None:
    text = "".join(f"node-{number}: {line}\n" for number in (1, 2) for line in SICK.splitlines())
    assert hosts(read(text)) == [("node-1", 7), ("node-2", 7)]


def test_lines_of_ranks(read: Read) -> None:
    lines = zip(SOUND.splitlines(), SICK.splitlines(), strict=True)
    text = "".join(f"0: {one}\n1: {other}\n" for one, other in lines)
    assert hosts(read(text)) == [("0.txt rank 0", 0), ("0.txt rank 1", 7)]


def test_files_of_one_host_are_joined(read: Read, tmp_path: Path) -> None:
    evidence = read(smi_txt=SICK, dmesg_txt=XID)
    assert [one.host for one in (*evidence.all(Gpus), *evidence.all(KernelLog))] == ["", ""]
    (finding,) = engine.examine(evidence, "diagnose").findings
    assert "Xid 48" in finding.because


def test_folders_of_several_hosts(read: Read) -> None:
    evidence = read(a__smi_txt=SOUND, a__dmesg_txt=XID, b__smi_txt=SICK)
    assert hosts(evidence) == [("a", 0), ("b", 7)]
    # The kernel's messages are of the first, and not of all.
    assert [one.host for one in evidence.all(KernelLog)] == ["a"]


def test_files_of_several_hosts(read: Read) -> None:
    evidence = read(a_txt=SICK, b_txt=SOUND)
    assert hosts(evidence) == [("a.txt", 7), ("b.txt", 0)]
    report = engine.examine(evidence, "diagnose")
    assert [one.where.hosts for one in report.findings] == [("a.txt",)]


def test_of_one_host_the_last_look_counts(read: Read) -> None:
    assert hosts(read(f"{SICK}\n{SOUND}")) == [("", 0)]


def test_a_bundle_knows_more(tmp_path: Path) -> None:
    bundle.write(tmp_path / "bundle.json", Evidence(SECTIONS))
    (tmp_path / "smi.txt").write_text(f"ann@{HOST}:~$ nvidia-smi\n{SICK}")
    evidence, _ = reader.read([tmp_path / "bundle.json", tmp_path / "smi.txt"])
    (section,) = evidence.all(Gpus)
    assert (len(section.gpus), section.printed) == (8, False)


def test_outputs_between_the_lines_of_a_log(read: Read, diagnose: Diagnose) -> None:
    steps = "".join(STEP.format(number) for number in range(2000))
    failure = "[rank0]: ValueError: no such thing\n"
    text = steps + SICK + steps + test_host.BASH.format(files=64, locked=64) + steps + failure
    evidence = read(text)
    assert hosts(evidence) == [("", 7)]
    assert len(evidence.all(Limits)) == 1
    (log,) = evidence.all(Log)
    assert log.lines == text.count("\n")
    # What was printed at another time does not explain the exception.
    first, *others = diagnose(text).findings
    assert (first.cause, first.because.split("`")[0][:23]) == (
        "script-error",
        "rank 0 raised ValueErro",
    )
    causes = {one.cause for one in others}
    assert causes == {"gpu-hardware-fault", "file-descriptor-limit-low"}


def test_what_an_output_says_is_told_once(diagnose: Diagnose) -> None:
    text = query({}, {"Remapped Rows/Pending": "Yes"}, driver="535.104.05")
    report = diagnose(text)
    assert [(one.cause, one.severity) for one in report.findings] == [
        ("gpu-hardware-fault", Severity.NOTE)
    ]


def test_a_part_of_an_output_is_read_as_text(diagnose: Diagnose) -> None:
    text = query({}, {"Remapped Rows/Pending": "Yes"}).partition("Attached GPUs")[2]
    assert diagnose(text).findings[0].evidence[0].name.startswith("train.log:")


def test_the_head_of_the_report(read: Read) -> None:
    text = f"ann@node-3:~$ nvidia-smi\n{SOUND}ann@node-3:~$ dmesg -T | tail\n{XID}\n"
    evidence = read(text)
    assert ("machine", "nvidia-smi, dmesg of node-3") in [*training.rows(evidence)]
    (section,) = evidence.all(PrintedOutputs)
    assert [one.command for one in section.outputs] == ["nvidia-smi", "dmesg"]
    assert [text.splitlines()[one.line - 1][:2] for one in section.outputs] == ["| ", "[ "]


def test_sound_outputs_do_not_show_that_all_is_well(read: Read) -> None:
    report = engine.examine(read(f"ann@node-3:~$ nvidia-smi\n{SOUND}"), "diagnose")
    assert wording.verdict(report) == "no fault found"
    assert report.world.hosts == ()


TEXTS = [
    SICK,
    query({}, {"Remapped Rows/Pending": "Yes"}),
    csv(COLUMNS, *(ROW.format(number, 0, 0, 0, 16) for number in range(4))),
    topology(4, {}, "NV12"),
    XID,
    test_software.COLLECTED.format(torch="2.1.0+cu121", cuda="12.1", driver="535.104.05"),
    test_software.DEEPSPEED,
    test_software.PACKAGES.format(torch="2.3.0", more="numpy 1.26.4"),
    test_host.BASH.format(files=1024, locked=64),
    f"{test_host.HEAD}/dev/sda  1.8T  1.7T  88G  96% /\nshm  64M  0  64M  0% /dev/shm\n",
    subprocess.run(["env"], capture_output=True, text=True, check=True, env=os.environ).stdout,
    ibstat(UP, UP),
    devinfo(("PORT_ACTIVE (4)", "InfiniBand")),
    printed(470),
    of_dcgm_4("Hardware", "memory", "a row was wrong"),
]
ODD = [
    "\0",
    "\x1b[31m",
    "99999999999999999999",
    "-1",
    "é",
    "│",
    "N/A",
    "[",
    "{" * 50,
    "|",
    " : ",
    "\t",
]


def garbled(text: str, chance: random.Random) -> Iterator[str]:
    """A text that is cut off, has lost, doubled or mixed up parts, or odd ones."""
    place = chance.randrange(len(text))
    end = place + chance.randrange(40)
    lines = text.splitlines(keepends=True)
    yield text[:place]
    yield text[place:]
    yield text[:place] + text[end:]
    yield text[:place] + text[place:end] * 3 + text[end:]
    yield text[:place] + chance.choice(ODD) + text[end:]
    yield "".join(chance.sample(lines, len(lines)))
    yield "".join(line for line in lines if chance.random() < 0.8)
    yield "".join(line.replace(" ", chance.choice(["", "  ", "\t"])) for line in lines)


@pytest.mark.parametrize("text", sampled(TEXTS), ids=lambda text: text.strip()[:20])
def test_garbled_outputs_are_read_or_left(text: str, tmp_path: Path) -> None:
    chance, beside = random.Random(text), tmp_path / "log"
    beside.write_text("step 1: loss 0.3\n")
    for _ in range(6):
        for number, damaged in enumerate(garbled(text, chance)):
            path = tmp_path / str(number)
            path.write_text(damaged or "\n", errors="replace")
            evidence, refused = reader.read([path, beside])
            assert [one for one in refused if not re.search("binary|cut off", one.why)] == []
            report = engine.examine(evidence, "diagnose")
            assert [one for one in report.crashed if one.check != JUDGING] == []


def test_many_outputs_are_bounded(read: Read) -> None:
    text = "ann@node-1:~$ env\nA=b\n" * 12_000
    assert len(read(text).all(PrintedOutputs)) <= 1


def test_a_long_output_is_bounded(read: Read) -> None:
    row = SOUND.splitlines()[8]
    (section,) = read(SOUND.replace(row, f"{row}\n" * 50_000, 1)).all(Gpus)
    assert len(section.gpus) <= 20_000
