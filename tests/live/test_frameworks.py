"""Trainings of frameworks, and of several kinds of parallelism, looked at from outside."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.conftest import LIMIT_SECONDS, STEERING, free_port
from tests.ward.running import SCRIPTS, TORCHRUN

AT_WORK = 20
STEP = re.compile(r"step (\d+)")


@dataclass(frozen=True, kw_only=True)
class Live:
    """A script of the ward, and what is to be told of it."""

    script: str
    words: tuple[str, ...]
    cause: str = ""
    """Empty: nothing."""
    line: str = ""
    """What stands at the line that is to be named."""
    by_itself: bool = False
    """Whether it starts its ranks itself."""
    requires: str = "torch"


SLOW, STUCK = "straggler-rank", "rank-stuck-outside-collective"
EVERY = (
    Live(
        script="tensor_parallel",
        words=("--profile-rank=1",),
        cause=SLOW,
        line="time.sleep(milliseconds / 1000)  # sends them",
    ),
    Live(script="tensor_parallel", words=("--workers=1",)),
    Live(
        script="pipelined",
        words=("--metrics-ms=600",),
        cause=SLOW,
        line="time.sleep(self.o.metrics_ms / 1000)",
    ),
    Live(script="pipelined", words=("--freeze-at=25",), cause=STUCK, line="time.sleep(100_000)"),
    Live(script="pipelined", words=("--schedule=1f1b",)),
    Live(
        script="fsdp_language",
        words=("--stall-step=25",),
        cause=STUCK,
        line="time.sleep(10_000)  # waits for a licence server",
    ),
    Live(
        script="local_sgd",
        words=("--report-rank=1", "--report-ms=600"),
        cause=SLOW,
        line="time.sleep(a.report_ms / 1000)",
    ),
    Live(
        script="spawned",
        words=("--debugger=25",),
        cause=STUCK,
        line="return os.read(console, 100)",
        by_itself=True,
    ),
    Live(
        script="lightning_fit",
        words=("--slow-rank=1",),
        cause=SLOW,
        line="time.sleep(self.settings.slow_ms / 1000)",
        by_itself=True,
        requires="lightning",
    ),
    Live(script="lightning_fit", words=("--workers=1",), by_itself=True, requires="lightning"),
    Live(
        script="preferences",
        words=("--upload-rank=1", "--upload-ms=800"),
        cause=SLOW,
        line="time.sleep(self.args.upload_ms / 1000)",
        requires="trl",
    ),
    Live(
        script="rewards",
        words=("--judge-rank=1", "--judge-ms=200"),
        cause=SLOW,
        line="time.sleep(self.args.judge_ms / 1000)",
        requires="trl",
    ),
)


@contextmanager
def started(live: Live, folder: Path) -> Iterator[psutil.Popen]:
    """The script, at work or stuck."""
    steps = (
        "--max-steps" if live.script in ("lightning_fit", "preferences", "rewards") else "--steps"
    )
    port = (f"--port={free_port()}",) if live.script == "spawned" else ()
    launcher = (sys.executable,) if live.by_itself else (*TORCHRUN, "2")
    path = SCRIPTS / f"{live.script}.py"
    log = folder / "log"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(STEERING)}
    ours = {"CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    with log.open("w") as file:
        process = psutil.Popen(
            [*launcher, str(path), f"{steps}=1000000", *live.words, *port],
            cwd=folder,
            env=inherited | ours,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + LIMIT_SECONDS
        while max((int(one) for one in STEP.findall(log.read_text())), default=0) < AT_WORK:
            assert process.is_running(), log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        if live.cause == STUCK:
            time.sleep(5)  # until it is
        yield process
    finally:
        for one in [*process.children(recursive=True), process]:
            with suppress(psutil.Error):
                one.kill()
        process.wait()


@pytest.mark.ward
@pytest.mark.parametrize(
    "live", [pytest.param(one, id=f"{one.script} {one.words[0]}") for one in EVERY]
)
def test_attached(live: Live, tmp_path: Path) -> None:
    if importlib.util.find_spec(live.requires) is None:
        pytest.skip(f"{live.requires} is not installed")
    with started(live, tmp_path) as process:
        done = subprocess.run(
            [sys.executable, "-m", "ddoctor", "attach", str(process.pid), "--json", "-"],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
    findings = json.loads(done.stdout)["findings"]
    alarms = [one for one in findings if one["severity"] != "note"]
    if not live.cause:
        assert alarms == []
        return
    first = alarms[0]
    lines = (SCRIPTS / f"{live.script}.py").read_text().splitlines()
    (number,) = (number for number, text in enumerate(lines, 1) if live.line in text)
    assert (first["cause"], first["where"]["ranks"]) == (live.cause, [1])
    assert f"{live.script}.py:{number}" in first["because"]
