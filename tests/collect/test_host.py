"""The host's collectors against other readers of the same machine."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ddoctor.collect import CannotSee
from ddoctor.collect.host import clock, cpus, indices, limits, memory, shared_memory
from ddoctor.evidence.host import Cpus, Limits, cpu_list


def in_a_child(collector: str, kind: type[Cpus] | type[Limits], *within: str) -> object:
    """What a collector sees in a process of its own, started within something."""
    program = (
        "import msgspec; from ddoctor.collect import host; "
        f"print(msgspec.json.encode(host.{collector}()).decode())"
    )
    command = [*within, sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return msgspec.json.decode(done.stdout, type=kind)


@pytest.mark.parametrize(
    ("listed", "numbers"),
    [("0", (0,)), ("0-3", (0, 1, 2, 3)), ("0-1,8,10-11\n", (0, 1, 8, 10, 11)), ("\n", ())],
)
def test_lists_of_cpus(listed: str, numbers: tuple[int, ...]) -> None:
    assert indices(listed) == numbers
    assert cpu_list(numbers) == listed.strip()


def test_cpus_are_those_of_nproc() -> None:
    seen = cpus()
    # It counts threads instead where OpenMP has been told of them.
    bare = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    every = int(subprocess.check_output(["nproc", "--all"], env=bare))
    assert len(seen.allowed) == int(subprocess.check_output(["nproc"], env=bare))
    assert len(seen.allowed) <= seen.logical <= every
    assert seen.usable > 0
    if seen.cpuset is not None:
        assert set(seen.allowed) <= set(seen.cpuset)


def test_every_cpu_belongs_to_one_numa_node() -> None:
    numbers = [cpu for node in cpus().numa for cpu in node.cpus]
    if not numbers:
        pytest.skip("this kernel tells of no NUMA nodes")
    assert len(numbers) == len(set(numbers)) == cpus().logical


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_the_affinity_mask_is_seen() -> None:
    core = max(os.sched_getaffinity(0))
    seen = in_a_child("cpus", Cpus, "taskset", "-c", str(core))
    assert isinstance(seen, Cpus)
    assert seen.allowed == (core,)
    assert seen.logical > 1


def test_memory_is_that_of_the_kernel() -> None:
    seen = memory()
    lines = Path("/proc/meminfo").read_text().splitlines()
    kernel = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    assert seen.total == kernel["MemTotal"]
    assert seen.swap_total == kernel["SwapTotal"]
    assert 0 < seen.available <= seen.total
    assert seen.limit is None or seen.limit < seen.total


def test_shared_memory_is_that_of_df() -> None:
    seen = shared_memory()
    told = subprocess.check_output(["df", "-B1", "--output=size,fstype", "/dev/shm"], text=True)
    size, filesystem = told.splitlines()[1].split()
    assert (seen.size, seen.filesystem) == (int(size), filesystem)
    assert 0 <= seen.free <= seen.size


def test_without_shared_memory_there_is_no_section(tmp_path: Path) -> None:
    with pytest.raises(CannotSee, match="No such file"):
        shared_memory(tmp_path / "shm")


def test_limits_are_those_of_prlimit() -> None:
    seen = in_a_child("limits", Limits, "prlimit", "--nofile=77:99", "--memlock=65536:65536", "--")
    assert isinstance(seen, Limits)
    assert (seen.open_files.soft, seen.open_files.hard) == (77, 99)
    assert seen.locked_memory.soft == 65536


def test_unlimited_is_none() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    assert limits().processes.soft == (None if soft == resource.RLIM_INFINITY else soft)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to drop a capability")
def test_the_right_to_lock_memory_is_seen() -> None:
    with_it = in_a_child("limits", Limits)
    without = in_a_child("limits", Limits, "setpriv", "--bounding-set=-ipc_lock")
    assert isinstance(with_it, Limits)
    assert isinstance(without, Limits)
    assert with_it.locks_without_limit is True
    assert without.locks_without_limit is False


def test_the_clock_is_judged_as_the_kernel_does() -> None:
    seen = clock()
    assert seen.synchronised in (True, False)
    assert seen.maximum_error is not None
    # The kernel gives up on its clock at 16 s (NTP_PHASE_LIMIT).
    assert 0 <= seen.maximum_error <= 16
    if seen.synchronised is False:
        assert seen.maximum_error > 0
