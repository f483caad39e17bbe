"""Sick and sound trainings, started as anybody starts them, looked at from outside.

As in `tests/ward`: the fault is provoked, and the first finding has to name it, its rank and the
user's line.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import StartLive
from tests.live.sick import AT_WORK, SICK


@pytest.mark.ward
@pytest.mark.parametrize("name", SICK)
def test_sick(start: StartLive, name: str) -> None:
    case = SICK[name]
    live = start(**case.parts)
    live.wait_for(case.wait_for)
    case.provoke(live)
    words = (word.format(folder=live.folder) for word in case.words)
    attached = live.attach("--seconds", "6", *words)
    first = attached.first
    assert first["cause"] == case.cause, attached.report
    assert first["severity"] != "note"
    if case.rank is not None:
        assert first["where"]["ranks"] == [case.rank]
    if case.line:
        assert live.place(case.line) in _told(first)


def _told(finding: Mapping[str, Any]) -> str:
    """With the lines of stacks as people write them."""
    told = finding["because"] + "".join(fix["paste"] for fix in finding["fixes"])
    return re.sub(r'File "[^"]*/([^"/]+)", line (\d+)', r"\1:\2", told)


SOUND: Mapping[str, Mapping[str, Any]] = {
    "workers that are started in each epoch": {"workers": 1, "length": "800", "epochs": 100_000},
    "with workers": {"workers": 1},
    "without workers": {},
    "resumed, and gone through what was trained on": {"workers": 1, "start": 200},
    "a slow first batch": {"item": "if index == 0: busy(15)", "workers": 1},
    "long steps": {"forward": "busy(1.5)"},
    # A hundred steps take at least 1.2 s: 8 % of the time, at most.
    "draws now and then": {"work": "if rank == 0 and step % 100 == 0: busy(0.1)"},
    "saves now and then": {
        "work": "if rank == 0 and step % 200 == 0: torch.save(torch.ones(1000), 'x.pt')"
    },
    "evaluates now and then": {
        "work": """
            if step % 100 == 99:
                for _ in range(20): busy(0.01)
                dist.all_reduce(torch.ones(1))
            """
    },
    "logs now and then": {"work": "if step % 10 == 0: print(step, flush=True)"},
    "writes to its disk in each step": {
        "forward": "busy(0.1)",
        "work": """
            with open(f"notes{rank}", "w") as file:
                file.write(100_000 * "x")
                file.flush()
                os.fsync(file.fileno())
            """,
    },
    "other lengths": {
        "forward": """
            self.calls = getattr(self, "calls", 0) + 1
            busy(0.002 * ((self.calls * 7 + rank * 3) % 5))
            """
    },
}


@pytest.mark.ward
@pytest.mark.parametrize("name", SOUND)
def test_sound(start: StartLive, name: str) -> None:
    live = start(**SOUND[name])
    live.wait_for({"long steps": 2, "a slow first batch": -1}.get(name, AT_WORK))
    before = live.step(0)
    attached = live.attach("--seconds", "6")
    assert attached.causes == [], attached.report
    live.wait_for(before + 1)


@pytest.fixture
def swap(tmp_path: Path) -> Iterator[None]:
    """Room on a disk for memory."""
    path = tmp_path / "swap"
    path.write_bytes(bytes(512 * 2**20))
    path.chmod(0o600)
    for command in ("mkswap", "swapon"):
        if subprocess.run([command, path], capture_output=True).returncode:
            pytest.skip("swap cannot be added here")
    yield
    subprocess.run(["swapoff", path], check=True)


@pytest.mark.ward
@pytest.mark.skipif(os.geteuid() != 0, reason="only root adds swap")
def test_a_rank_that_swaps(swap: None, start: StartLive) -> None:
    # 21: MADV_PAGEOUT of madvise(2), what the kernel does by itself where memory is short.
    live = start(
        before="""
            global memory
            import mmap
            memory = mmap.mmap(-1, 256 * 2**20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory.write(b"x" * len(memory))
            """,
        work="""
            if rank == 1:
                memory.madvise(21)
                sum(memory[step % 20 * 8192 * 400 : (step % 20 + 1) * 8192 * 400 : 4096])
            """,
    )
    live.wait_for(AT_WORK)
    first = live.attach("--seconds", "6").first
    assert (first["cause"], first["where"]["ranks"]) == ("host-ram-oom", [1]), first


NOTES: Mapping[str, Mapping[str, Any]] = {
    "compute-bound": {"forward": "busy(0.2)", "ranks": 1},
    "per-rank-metrics-or-logging": {
        "work": "for _ in range(5000): print(step, flush=True)",
    },
}


@pytest.mark.ward
@pytest.mark.parametrize("cause", NOTES)
def test_notes(start: StartLive, cause: str) -> None:
    live = start(**NOTES[cause])
    live.wait_for(AT_WORK)
    told = {one["cause"]: one for one in live.attach("--seconds", "6").report["findings"]}
    assert told[cause]["severity"] == "note", told
