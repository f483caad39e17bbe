"""A thousand looks at a live run, and at many processes: nobody feels them."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ddoctor.errors import DoctorError
from ddoctor.evidence.live import LiveLook
from ddoctor.live import attach
from ddoctor.live.attach import SamplingOptions
from ddoctor.live.sampling_rate import SamplingRate
from tests.hostile.surroundings import LIMIT_SECONDS, TOGETHER, TORCHRUN, run, script
from tests.live.conftest import StartLive

LOOKS = 1000
LOOK_SECONDS = 0.2
RANKS, LOOKS_AT_MANY = 64, 20
LIGHT = """
import mmap, sys, time
with open(sys.argv[1], "rb") as file:
    held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
while True:
    time.sleep(0.5)
"""
"""A rank by its environment, and by a mapped file with the name of a library of torch."""


def look(pid: int, seconds: float) -> LiveLook:
    """One look as of ``attach --watch``, but shorter."""
    rows = attach.choose([pid], None)
    (evidence,) = attach.observe(rows, SamplingRate(rows, seconds, watch=True), SamplingOptions())
    (found,) = evidence.all(LiveLook)
    return found


def spies() -> list[int]:
    children = psutil.Process().children()
    return [one.pid for one in children if "py-spy" in one.name()]


@pytest.mark.ward
@pytest.mark.timeout(3600)
def test_a_thousand_looks(start: StartLive) -> None:
    live = start(
        after="open('weights', 'w').write(str([p.sum().item() for p in model.parameters()]))"
    )
    live.wait_for(5)
    ranks, seen = live.ranks(), 0
    for number in range(LOOKS):
        before = live.step(0)
        found = look(live.launcher.pid, LOOK_SECONDS)
        assert [one.rank for one in found.ranks] == [0, 1]
        seen += all(one.samples for one in found.ranks)
        if number % 100 == 99:
            live.wait_for(before + 1)
    assert live.ranks() == ranks
    assert all(one.status() not in ("stopped", "tracing-stop") for one in ranks)
    assert not spies()
    # A busy machine leaves py-spy too little of so short a look.
    assert seen > LOOKS / 4


@pytest.mark.ward
def test_a_training_that_is_looked_at_computes_the_same(tmp_path: Path) -> None:
    source = (
        TOGETHER.replace("range(40)", "range(600)")
        .replace('print("the end"', 'print("the end", model.module.weight.double().sum().item()')
        .replace("model = ", "torch.manual_seed(0)\n    model = ")
    )
    words = (*TORCHRUN, "2", str(script(tmp_path, source)))
    alone = run(*words)
    looked_at = psutil.Popen(words, stdout=subprocess.PIPE, text=True)
    looks = 0
    while looked_at.poll() is None:
        with suppress(DoctorError):  # not yet, or no longer
            look(looked_at.pid, LOOK_SECONDS)
            looks += 1
    output, _ = looked_at.communicate()
    assert (looked_at.returncode, looks > 2) == (0, True)
    results = (alone.stdout, output)
    # Two ranks may write to one line.
    weights = [re.findall(r"-?\d+\.\d+", one) for one in results]
    assert len(weights[0]) == 2
    assert set(weights[0]) == set(weights[1])


@pytest.fixture
def many(tmp_path: Path) -> Iterator[psutil.Popen]:
    """The launcher of 64 light ranks."""
    library = tmp_path / "libtorch_light.so"
    library.write_bytes(bytes(4096))
    code = f"""
import os, subprocess, sys
started = [
    subprocess.Popen(
        [sys.executable, "-c", {LIGHT!r}, {str(library)!r}],
        env={{**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank),
             "WORLD_SIZE": "{RANKS}", "LOCAL_WORLD_SIZE": "{RANKS}",
             "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}},
    )
    for rank in range({RANKS})
]
for one in started:
    one.wait()
"""
    process = psutil.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + LIMIT_SECONDS
    while sum(str(library) in _maps(one.pid) for one in process.children()) < RANKS:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield process
    for one in [*process.children(), process]:
        one.kill()
    process.wait()


def _maps(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


@pytest.mark.ward
def test_looks_at_many_processes(many: psutil.Popen) -> None:
    ranks = many.children()
    for _ in range(LOOKS_AT_MANY):
        found = look(many.pid, LOOK_SECONDS)
        assert [one.rank for one in found.ranks] == list(range(RANKS))
    ran = run(sys.executable, "-m", "ddoctor", "attach", str(many.pid), "--seconds", "3")
    assert f"{RANKS} of {RANKS} ranks" in " ".join(ran.stdout.split())
    assert ran.code == 2
    assert many.children() == ranks
    assert all(one.status() == psutil.STATUS_SLEEPING for one in ranks)
    assert not spies()
