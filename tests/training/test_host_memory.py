"""Host memory that runs out: the kernel kills a rank for it, or it says when it will be full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddoctor.evidence.gpus import KernelLog
from ddoctor.evidence.host import Memory
from ddoctor.evidence.software import Environment
from ddoctor.evidence.steps import MemoryOverTime
from ddoctor.evidence.training import TrainingRun
from tests import control_group
from tests.training.conftest import MakeTraining

LIMIT_MIB = 1500
"""Two ranks with torch, their supervisors and torchrun take about a third of it."""

TRAIN = """
    import sys, time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    kept_numbers = int(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    class Net(nn.Linear):
        def forward(self, x):
            time.sleep(0.01)
            return super().forward(x)

    model = DistributedDataParallel(Net(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept = []
    for step in range(100_000):
        loss = model(torch.randn(8, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 1 and step >= 20 and kept_numbers:
            kept.append(torch.ones(kept_numbers))
"""


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """The list of processes of a cgroup with a memory limit."""
    with control_group.group(*control_group.memory(LIMIT_MIB * 2**20)) as folder:
        yield folder / "cgroup.procs"


def within(group: Path) -> tuple[str, ...]:
    """A command that runs its arguments in the cgroup with this list of processes."""
    return ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group))


@pytest.mark.ward
def test_a_rank_that_the_kernel_kills_for_memory(
    training: MakeTraining, little_memory: Path
) -> None:
    script = training(TRAIN, str(2**24))
    command = script.under("--no-prove", "--steps=10000")
    with script.started(*within(little_memory), *command) as process:
        trained = script.outcome(process)
    (run,) = trained.evidence.all(TrainingRun)
    assert run.ranks[1].exit_code == -9, trained.stderr
    (memory,) = trained.evidence.all(Memory)
    assert memory.limit == LIMIT_MIB * 2**20
    assert (memory.kills_before, memory.kills) == (0, 1)
    first = trained.first
    assert (first["cause"], first["severity"]) == ("host-ram-oom", "error")
    assert first["where"]["ranks"] == [1]
    assert "dead-rank" in first["consequences"]
    assert "dead-rank" not in trained.alarms
    (log,) = trained.evidence.all(KernelLog) or (None,)
    if log is not None and any(f" {run.ranks[1].pid} " in line for line in log.oom_kills):
        assert first["confidence"] == "certain"
        assert f"Killed process {run.ranks[1].pid}" in first["because"]
    else:
        # A container counts its processes from 1, and the kernel log does not.
        assert (
            "the kernel killed 1 process of the cgroup for memory during the run"
            in (first["because"])
        )


@pytest.mark.ward
def test_when_the_host_will_be_full(training: MakeTraining) -> None:
    trained = training(TRAIN, str(2**18)).recorded("--no-prove", "--steps=150")
    leaks = [one for one in trained.told["findings"] if one["cause"] == "host-memory-leak"]
    (leak,) = leaks
    assert leak["where"]["ranks"] == [1]
    assert "at this rate" in leak["because"]
    assert "is full in" in leak["because"]


GAPS = """
    import ctypes
    import time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.realloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    for _ in range(400):
        libc.malloc(2**15)  # what is free so far
    last, size = None, 2**15
    def gaps():
        global last, size
        for _ in range(60):
            # Each block is larger than all gaps, so it lies behind them. The one before it shrinks
            # and leaves another gap.
            block = libc.malloc(size)
            libc.memset(block, 1, size)
            if last:
                libc.realloc(last, 16)
            last, size = block, size + 12
    def train(batch):
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)
"""
IN_THE_PROCESS = """
    for step in range(100_000):
        gaps()
        train(torch.randn(8, 64))
"""
IN_WORKERS = """
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            while True:
                gaps()
                yield torch.randn(8, 64)
    for batch in torch.utils.data.DataLoader(Stream(), batch_size=None, num_workers=1):
        train(batch)
"""


@pytest.mark.ward
def test_memory_that_malloc_keeps_free_is_no_leak(training: MakeTraining) -> None:
    trained = training(GAPS + IN_THE_PROCESS).recorded("--no-prove", "--steps=80")
    (memory,) = trained.evidence.all(MemoryOverTime)
    for growth in memory.ranks:
        assert growth.resident[-1] - growth.resident[0] > 64
        assert growth.used[-1] - growth.used[0] < 10
    assert "host-memory-leak" not in [one["cause"] for one in trained.told["findings"]]


@pytest.mark.ward
def test_memory_that_malloc_keeps_free_in_workers_is_no_leak(training: MakeTraining) -> None:
    trained = training(GAPS + IN_WORKERS).recorded("--no-prove", "--steps=80")
    (memory,) = trained.evidence.all(MemoryOverTime)
    for growth in memory.ranks:
        grown = growth.workers[-1] - growth.workers[0]
        assert grown > 64
        # Both are looked at several times a second, but not at once.
        assert growth.workers_used[-1] - growth.workers_used[0] < grown / 2
    assert "host-memory-leak" not in [one["cause"] for one in trained.told["findings"]]


@pytest.mark.ward
def test_the_host_of_a_sound_run_raises_no_alarm(
    training: MakeTraining, little_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDOCTOR_TEST_TOKEN", "secret-of-the-user")
    script = training(TRAIN, "0")
    with script.started(*within(little_memory), *script.under("--no-prove", "--steps=50")) as run:
        trained = script.outcome(run)
    assert trained.alarms == []
    assert trained.told["crashed"] == []
    (memory,) = trained.evidence.all(Memory)
    assert memory.kills == 0
    (environment,) = trained.evidence.all(Environment)
    assert environment.get("WORLD_SIZE") == "2"
    assert "secret-of-the-user" not in (script.script.parent / "bundle.json").read_text()
