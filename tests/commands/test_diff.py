"""`ddoctor diff` as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddoctor.evidence import bundle
from ddoctor.evidence.host import SharedMemory
from ddoctor.evidence.probes import AllReduce, Matmul, ProbeRun, ProbeRuns, RankRate, StorageRead
from ddoctor.evidence.section import Evidence, Section
from ddoctor.evidence.software import Environment, Variable
from tests.healthy import healthy
from tests.healthy.probes import CURVE, rates, sweep
from tests.whole_run import HISTORY

HOST = "node-1"


def section(kind: type[Section], **fields: Any) -> Section:
    """The healthy section of a kind, with some fields otherwise."""
    found = healthy().of(kind, HOST)
    assert found is not None
    return msgspec.structs.replace(found, **fields)


def one_slow(factor: float, spread: float = 7.0) -> Section:
    """The healthy matmul, with one GPU slower."""
    first, *others = rates(720.0)
    slow = RankRate(place=first.place, rate=first.rate * factor, spread=spread)
    return section(Matmul, rates=(slow, *others))


class Files:
    """Bundles of a healthy host, with some sections replaced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, *sections: Section, host: str = HOST) -> Path:
        path = self.folder / f"{name}.json"
        bundle.write(path, healthy().with_sections(*sections))
        path.write_text(path.read_text().replace(f'"{HOST}"', f'"{host}"'))
        return path


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def diff(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddoctor", "diff", *arguments],
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
    )


def test_a_slower_gpu_is_worse(files: Files) -> None:
    run = diff(files.write("old"), files.write("new", one_slow(0.6)))
    assert run.returncode == 1, run.stderr
    first, *rest = run.stdout.splitlines()
    assert first == "worse"
    assert "  matmul bfloat16 8192, node-1 cuda:0: 720 → 432 TFLOP/s (-40 %)" in rest


def test_the_largest_common_size_of_a_collective_counts(files: Files) -> None:
    smaller = {size: rate for size, rate in CURVE.items() if size <= 2**29}
    slow = {size: rate / 2 if size == 2**29 else rate for size, rate in smaller.items()}
    run = diff(files.write("old"), files.write("new", section(AllReduce, points=sweep(slow))))
    assert run.returncode == 1
    assert "all-reduce of 8 ranks over nccl at 512 MiB, node-1: 438 → 219 GB/s" in run.stdout


def test_a_run_that_lost_time_is_worse(files: Files) -> None:
    hung = msgspec.structs.replace(HISTORY, seconds=2 * HISTORY.seconds)
    run = diff(files.write("old", HISTORY), files.write("new", hung))
    assert run.returncode == 1
    assert "  whole training on 2 ranks: 0.955 → 0.477 steps/s (-50 %)" in run.stdout
    assert diff(files.write("same", HISTORY), files.write("again", HISTORY)).returncode == 0


def test_settings_that_changed_are_told_and_are_not_worse(files: Files) -> None:
    healthy_ones = healthy().all(Environment)[0].variables
    variables = (*healthy_ones, Variable(name="NCCL_ALGO", value="Ring"))
    run = diff(files.write("old"), files.write("new", section(Environment, variables=variables)))
    assert run.returncode == 0
    assert "  NCCL_ALGO on node-1: not set → Ring" in run.stdout.splitlines()


def test_what_is_found_now_is_worse_and_what_is_gone_is_not(files: Files) -> None:
    sound = files.write("sound")
    sick = files.write("sick", section(SharedMemory, size=64 * 2**20, free=64 * 2**20))
    worse, better = diff(sound, sick), diff(sick, sound)
    assert worse.returncode == 1
    assert "found now\n  error: shm-too-small, node-1: " in worse.stdout
    assert better.returncode == 0
    assert "no longer found\n  error: shm-too-small, node-1: " in better.stdout


def test_a_probe_that_hangs_now_is_worse(files: Files) -> None:
    hung = ProbeRun(probe="matmul", outcome="hung", reason="rank 3 is stopped")
    run = diff(files.write("old"), files.write("new", section(ProbeRuns, runs=(hung,))))
    assert run.returncode == 1
    assert "failed now\n  probe matmul: hung: rank 3 is stopped" in run.stdout


@pytest.mark.parametrize(
    "sections",
    [
        (),
        (one_slow(0.95),),
        # Slower by less than the rounds of one run differ.
        (one_slow(0.85, spread=200.0),),
        (section(AllReduce, points=sweep({s: 0.95 * r for s, r in CURVE.items()})),),
        (section(AllReduce, points=sweep({s: 2 * r for s, r in CURVE.items()})),),
        # Slow where it does not count: on small messages.
        (
            section(
                AllReduce, points=sweep({s: r / (2 if s < 2**28 else 1) for s, r in CURVE.items()})
            ),
        ),
        # From another folder, and from the page cache.
        (section(StorageRead, path="/elsewhere", sequential=10.0),),
        (section(StorageRead, cold=False, sequential=10.0),),
    ],
)
def test_nothing_got_worse(files: Files, sections: tuple[Section, ...]) -> None:
    run = diff(files.write("old"), files.write("new", *sections))
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith("nothing got worse\n")
    assert "slower" not in run.stdout


def test_a_median_that_few_slow_rounds_moved_is_not_slower(files: Files) -> None:
    points = tuple(
        msgspec.structs.replace(point, bus_bandwidth=0.8 * point.bus_bandwidth, p50=point.p50 / 0.8)
        for point in sweep(CURVE)
    )
    run = diff(files.write("old"), files.write("new", section(AllReduce, points=points)))
    assert "slower" not in run.stdout


def test_two_single_hosts_are_compared_whatever_their_names(files: Files) -> None:
    old = files.write("old")
    same = diff(old, files.write("same", host="node-7"))
    assert same.returncode == 0, same.stdout
    assert [line for line in same.stdout.splitlines() if line.startswith(" ")] == []
    worse = diff(old, files.write("worse", one_slow(0.6), host="node-7"))
    assert "node-1 cuda:0: 720 → 432 TFLOP/s" in worse.stdout


def test_json(files: Files, tmp_path: Path) -> None:
    old, new = files.write("old"), files.write("new", one_slow(0.6))
    run = diff(old, new, "--json", "-")
    assert run.returncode == 1
    told = json.loads(run.stdout)
    assert told["worse"] is True
    (slower,) = told["slower"]
    assert slower["figure"]["device"] == "cuda:0"
    assert slower["new"] == pytest.approx(432.0)
    run = diff(old, new, "--json", tmp_path / "difference.json")
    assert run.stdout.startswith("worse\n")
    assert json.loads((tmp_path / "difference.json").read_text()) == told


def test_mistakes_get_one_line(files: Files, tmp_path: Path) -> None:
    good = files.write("good")
    torn = tmp_path / "torn.json"
    torn.write_bytes(good.read_bytes()[:300])
    pair = files.folder / "pair.json"
    bundle.write(pair, Evidence(SharedMemory(host=h, size=2**36, free=2**36) for h in "ab"))
    for arguments, words in (
        ((good, tmp_path / "missing.json"), "cannot read"),
        ((torn, good), "not a whole evidence bundle"),
        ((good, pair), "no host is in both"),
        ((good,), "NEW"),
        ((good, good, "--json", tmp_path), "is a folder"),
    ):
        run = diff(*arguments)
        assert run.returncode == 2, arguments
        assert run.stdout == ""
        (line,) = run.stderr.splitlines()
        assert words in line
