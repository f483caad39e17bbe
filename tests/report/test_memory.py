"""The table of what holds the GPU memory, in each form of a report."""

from __future__ import annotations

import io
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

from ddoctor import engine
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.memory_snapshot import DeviceMemory, Holder, MemoryFailure, MemorySnapshots
from ddoctor.evidence.section import Evidence
from ddoctor.report import html, markdown, memory, terminal
from tests.healthy import healthy

GIB = 2**30
LINE = Frame(file="/home/ann/train.py", line=44, function="step", of_user=True)
RANK = DeviceMemory(
    rank=3,
    file="oom_rank3.pickle",
    device=3,
    reserved=40 * GIB,
    allocated=36 * GIB,
    largest_free=GIB,
    holders=(
        Holder(kind="optimizer states", line=LINE, bytes=24 * GIB, blocks=600),
        Holder(kind="no stack", bytes=11 * GIB, blocks=1),
        Holder(kind="other", line=LINE, bytes=GIB // 100, blocks=7, grown=GIB // 200),
        Holder(kind="other", line=LINE, bytes=GIB // 100, blocks=7),
    ),
)


def evidence(*devices: DeviceMemory) -> Evidence:
    return Evidence([MemorySnapshots(files=("oom_rank3.pickle",), devices=devices)])


def test_the_rows() -> None:
    assert memory.holders(evidence(RANK)).rows == (
        ("rank 3, GPU 3", "24.00", "60%", "optimizer states, train.py:44 in step (600 blocks)"),
        ("rank 3, GPU 3", "11.00", "28%", "without a recorded stack (1 block)"),
        (
            *("rank 3, GPU 3", "0.01", "0%"),
            "train.py:44 in step (7 blocks, 0.00 GiB added step by step)",
        ),
        ("rank 3, GPU 3", "0.99", "2%", "others"),
        ("rank 3, GPU 3", "4.00", "10%", "reserved, not allocated"),
    )


def test_the_head() -> None:
    assert [*memory.seen(evidence(RANK))] == [
        ("snapshots", "of the memory of 1 GPU"),
        (
            "memory",
            "rank 3, GPU 3: 40.00 GiB reserved, 36.00 of it allocated, 4.00 free in blocks of at "
            "most 1.00",
        ),
    ]
    assert [*memory.seen(evidence())] == [("snapshots", "of the memory of 0 GPUs")]


def test_a_file_without_a_rank_is_named() -> None:
    nameless = replace(RANK, rank=None, file="dump_snapshot.pickle")
    assert memory.holders(evidence(nameless)).rows[0][0] == "dump_snapshot.pickle, GPU 3"


def test_of_many_gpus_those_that_failed_are_shown() -> None:
    failed = MemoryFailure(bytes=GIB, free=0, kind="activations")
    ranks = [replace(RANK, rank=rank, device=rank % 8) for rank in range(64)]
    ranks[50] = replace(ranks[50], failure=failed, reserved=37 * GIB)
    names = {row[0] for row in memory.holders(evidence(*ranks)).rows}
    assert len(names) == memory.MOST_DEVICES
    assert "rank 50, GPU 2" in names


def test_each_form_shows_it(tmp_path: Path) -> None:
    given = evidence(RANK)
    report = engine.examine(given, "diagnose")
    console = Console(file=(text := io.StringIO()), width=100)
    terminal.render(report, given, console)
    forms = text.getvalue(), markdown.render(report, given), html.render(report, given)
    for form in forms:
        assert "hat holds the GPU memory" in form
        assert "optimizer states, train.py:44 in step (600 blocks)" in form
        assert "4.00" in form


def test_without_a_snapshot_nothing_is_shown() -> None:
    assert memory.holders(healthy("run")).rows == ()
    assert [*memory.seen(healthy("run"))] == []
