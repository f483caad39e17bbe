"""Who is a rank, by what its own launcher told it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from ddoctor.live import rank_processes
from tests.conftest import free_port
from tests.live.test_bad_input import WITH_TORCH, python

# mpirun starts its daemons with srun, whose words the ranks inherit.
IN_AN_ALLOCATION = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}


def test_a_rank_of_mpirun_within_an_allocation() -> None:
    told = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}
    with python(WITH_TORCH, **IN_AN_ALLOCATION, **told) as process:
        (found,) = rank_processes.named([process.pid]).ranks
    assert (found.rank, found.world) == (3, 8)


def test_a_rank_of_srun() -> None:
    with python(WITH_TORCH, **IN_AN_ALLOCATION, SLURM_LOCALID="0") as process:
        (found,) = rank_processes.named([process.pid]).ranks
    assert (found.rank, found.world) == (0, 2)


def test_a_process_that_nobody_launched() -> None:
    assert "RANK" not in os.environ
    with python(WITH_TORCH) as process:
        (found,) = rank_processes.named([process.pid]).ranks
    assert (found.rank, found.world, found.job) == (0, 1, (str(process.pid),))


SPAWNED = """
import os, time
import torch.distributed as dist, torch.multiprocessing as mp
from torch.utils.data import DataLoader

def train(rank, port):
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    if {joins}:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    batches = iter(DataLoader(range(9), num_workers=1, multiprocessing_context="{context}"))
    next(batches)
    os.write(1, b"ready\\n")  # in one piece
    time.sleep(1000)

if __name__ == "__main__":
    mp.spawn(train, args=({port},), nprocs=2)
"""
BY_ITSELF = """
import os, subprocess, sys, time
import torch.distributed as dist
rank = int(os.environ.get("LOCAL_RANK", "0"))
if rank == 0:
    path, told = os.path.abspath("train.py"), {**os.environ, "LOCAL_RANK": "1"}
    subprocess.Popen([sys.executable, path], env=told)
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=2)
os.write(1, b"ready\\n")  # in one piece
time.sleep(1000)
"""


@contextmanager
def training(folder: Path, source: str, ready: int) -> Iterator[psutil.Process]:
    """A script, once so many of its processes are ready."""
    (folder / "train.py").write_text(source)
    process = psutil.Popen([sys.executable, "train.py"], cwd=folder, stdout=subprocess.PIPE)
    try:
        for _ in range(ready):
            assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        for one in [*process.children(recursive=True), process]:
            with suppress(psutil.Error):
                one.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.ward)])
def test_ranks_that_are_spawned(tmp_path: Path, context: str) -> None:
    source = SPAWNED.format(joins=True, context=context, port=free_port())
    with training(tmp_path, source, 2) as process:
        found = rank_processes.named([process.pid]).ranks
        every = [one for one in rank_processes.find().ranks if process.pid in one.ancestors]
        started = sorted(found, key=lambda one: one.process.create_time())
        workers = [[worker.ppid() for worker in one.workers] for one in started]
    assert [(one.rank, one.world) for one in started] == [(0, 2), (1, 2)]
    assert {one.process.pid for one in every} == {one.process.pid for one in found}
    assert {one.job for one in found} == {(str(started[0].process.pid),)}
    assert rank_processes.missing(found) == ()
    # Of the helpers of multiprocessing, none is a worker.
    assert workers == [[one.process.pid] for one in started]


def test_ranks_that_the_first_one_starts(tmp_path: Path) -> None:
    with training(tmp_path, BY_ITSELF, 2) as process:
        found = rank_processes.named([process.pid]).ranks
        (other,) = process.children()
        assert {one.process.pid: one.rank for one in found} == {process.pid: 0, other.pid: 1}
    assert [one.workers for one in found] == [(), ()]


def test_processes_that_are_no_ranks(tmp_path: Path) -> None:
    """Two servers that a script has started, without a connection between them."""
    source = SPAWNED.replace("{port}", "0").format(joins=False, context="fork")
    source = source.replace("is_master=rank == 0", "is_master=True, wait_for_workers=False")
    with training(tmp_path, source, 2) as process:
        (found,) = rank_processes.named([process.pid]).ranks
    assert (found.process.pid, found.rank, found.world) == (process.pid, 0, 1)


def test_a_rank_that_ddoctor_records(tmp_path: Path) -> None:
    """Its supervisor has the same rank, but has not loaded torch."""
    (tmp_path / "train.py").write_text(WITH_TORCH)
    process = psutil.Popen(
        [sys.executable, "-m", "ddoctor.probe", "run", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": str(free_port())},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout.readline() == b"ready\n"
        (found,) = rank_processes.named([process.pid]).ranks
        assert found.process.ppid() == process.pid
        assert (found.rank, found.script) == (0, ("train.py",))
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
