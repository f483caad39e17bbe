"""Trainings that run as anybody starts them, to be looked at from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import psutil
import pytest

from tests.conftest import STEERING, free_port

LIMIT_SECONDS = 120
TRAIN = """
import gc, itertools, os, time
import threading
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, default_collate


class Items(Dataset):
    def __len__(self):
        return {length}

    def __getitem__(self, index):
{item}
        return torch.randn(16)


def collate(items):
{collate}
    return default_collate(items)


class Passed(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
{backward}
        return gradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, value):
{forward}
        busy(0.01)
        return Passed.apply(self.layers(value))


def busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        torch.randn(2000).sort()


def early():
{early}


def before():
{before}


def work(step):
{work}


def after():
{after}


def main():
    before()
    torch.manual_seed(rank)
    model = DDP(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Items(), batch_size=8, num_workers={workers}, collate_fn=collate)
    batches = itertools.chain.from_iterable(loader for epoch in range({epochs}))
    for step, batch in enumerate(batches):
        if step < {start}:
            continue
        work(step)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        os.pwrite(progress, f"{{step:9}}".encode(), 0)
    after()


rank = int(os.environ["RANK"])
early()
dist.init_process_group("gloo")
progress = os.open(f"step{{rank}}", os.O_WRONLY | os.O_CREAT)
main()
"""
PLAIN = """
import os, subprocess, sys
names = ("MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK")
port, world = sys.argv[1:]
started = [
    subprocess.Popen(
        [sys.executable, "train.py"],
        env={**os.environ, "MASTER_ADDR": "localhost", **dict(zip(names, told))},
    )
    for rank in map(str, range(int(world)))
    for told in [(port, world, world, rank, rank)]
]
for one in started:
    one.wait()
"""
"""A launcher that does not care."""
SERVED = 'TORCH_WORKER_SERVER_SOCKET=worker$RANK exec "$0" train.py'
"""A control socket for each rank, which the script has to open."""
PARTS = {
    **dict.fromkeys(("item", "backward", "forward"), 8),
    **dict.fromkeys(("early", "collate", "before", "work", "after"), 4),
}
"""What a test may put into the script, and how far it is indented."""
NOTHING_SET: Mapping[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class Attached:
    """What came of a look."""

    exit_code: int
    report: Mapping[str, Any]
    stderr: str

    @property
    def causes(self) -> list[str]:
        """Of warnings and errors, in their order."""
        findings = self.report["findings"]
        return [one["cause"] for one in findings if one["severity"] != "note"]

    @property
    def first(self) -> Mapping[str, Any]:
        """The one to repair first."""
        found: Mapping[str, Any] = self.report["findings"][0]
        return found


@dataclass(kw_only=True)
class Live:
    """A training that runs."""

    folder: Path
    launcher: psutil.Process

    def ranks(self) -> list[psutil.Process]:
        """Its ranks, in order."""
        found = {}
        for one in self.launcher.children():
            with suppress(psutil.Error):
                # Just forked, it is still the launcher.
                found[one.environ().get("RANK", "")] = one
        found.pop("", None)
        return [found[rank] for rank in sorted(found, key=int)]

    def step(self, rank: int) -> int:
        """The last that a rank has done; -1: none yet, -2: it has not met the others."""
        path = self.folder / f"step{rank}"
        return int(path.read_text() or -1) if path.exists() else -2

    def place(self, text: str) -> str:
        """Where this stands in the script, say ``train.py:30``."""
        lines = (self.folder / "train.py").read_text().splitlines()
        (number,) = (number for number, line in enumerate(lines, 1) if text in line)
        return f"train.py:{number}"

    def wait_for(self, step: int) -> None:
        """Until all ranks have done so many."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while min(self.step(rank) for rank in range(len(self.ranks()) or 1)) < step:
            assert self.launcher.is_running()
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def stop(self, rank: int) -> None:
        """As a scheduler, a debugger or Ctrl-Z does it."""
        process = self.ranks()[rank]
        process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + LIMIT_SECONDS
        while process.status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline

    def attach(self, *words: str) -> Attached:
        """Look at it; whoever was there before is there afterwards, and as it was.

        But for loader workers, which may end with their epoch.
        """
        ranks = self.launcher.children()
        before = {one.pid: one.status() for one in self.launcher.children(recursive=True)}
        done = subprocess.run(
            [
                *(sys.executable, "-m", "ddoctor", "attach", str(self.launcher.pid)),
                *("--json", "-", "--seconds", "4", *words),
            ],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        now = {one.pid: one.status() for one in self.launcher.children(recursive=True)}
        assert self.launcher.children() == ranks
        held = {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
        assert {pid for pid in now if now[pid] in held} == {
            pid for pid in before if before[pid] in held
        }
        assert done.stdout, done.stderr
        return Attached(
            exit_code=done.returncode, report=json.loads(done.stdout), stderr=done.stderr
        )


StartLive = Callable[..., Live]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartLive]:
    """Start a training in which some PARTS do this."""
    started: list[psutil.Process] = []

    def run(
        *,
        workers: int = 0,
        length: str = "1_000_000",
        epochs: int = 1,
        start: int = 0,
        ranks: int = 2,
        plain: bool = False,
        environment: Mapping[str, str] = NOTHING_SET,
        served: bool = False,
        **parts: str,
    ) -> Live:
        code = {
            part: indent(dedent(parts.pop(part, "pass")).strip(), " " * width)
            for part, width in PARTS.items()
        }
        assert not parts
        source = TRAIN.format(workers=workers, length=length, epochs=epochs, start=start, **code)
        (tmp_path / "train.py").write_text(source)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(STEERING)}
        torchrun = ("torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
        launcher = ("-c", PLAIN, str(free_port()), str(ranks)) if plain else ("-m", *torchrun)
        script = ("--no-python", "sh", "-c", SERVED, sys.executable) if served else ("train.py",)
        process = psutil.Popen(
            [sys.executable, *launcher, *(() if plain else script)],
            cwd=tmp_path,
            env={**inherited, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        return Live(folder=tmp_path, launcher=process)

    yield run
    for process in started:
        for one in [*process.children(recursive=True), process]:
            with suppress(psutil.Error):
                # A worker may end by itself meanwhile.
                one.kill()
        process.wait(LIMIT_SECONDS)
