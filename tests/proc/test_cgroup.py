"""Control groups: a real quota here, and trees of files for what this machine does not have."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ddoctor.collect.host import cpus, memory
from ddoctor.evidence.host import Cpus
from ddoctor.proc import cgroup
from tests import control_group

GIB = 2**30
HYBRID_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "29 23 0:26 {top} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"


class Tree:
    """A machine's files in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def v1(self, path: str, top: str = "/") -> None:
        self.write("/proc/self/mountinfo", HYBRID_MOUNTS.format(top=top))
        self.write("/proc/self/cgroup", f"4:memory:{path}\n1:cpu,cpuacct:{path}\n0::/init.scope\n")

    def v2(self, path: str, top: str = "/") -> None:
        self.write("/proc/self/mountinfo", V2_MOUNTS.format(top=top))
        self.write("/proc/self/cgroup", f"0::{path}\n")

    def quota(self) -> cgroup.Quota:
        return cgroup.quota(cgroup.controller("cpu", self.root))

    def limit(self) -> cgroup.MemoryLimit:
        return cgroup.memory_limit(cgroup.controller("memory", self.root))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_v2_the_tightest_ancestor_counts(tree: Tree) -> None:
    tree.v2("/pods.slice/pod1/main")
    tree.write("/sys/fs/cgroup/pods.slice/pod1/main/cpu.max", "max 100000\n")
    tree.write("/sys/fs/cgroup/pods.slice/pod1/cpu.max", "150000 100000\n")
    tree.write("/sys/fs/cgroup/pods.slice/cpu.max", "3200000 100000\n")
    found = tree.quota()
    assert found.cpus == 1.5
    assert found.file == f"{tree.root}/sys/fs/cgroup/pods.slice/pod1/cpu.max"


def test_v2_in_a_container_the_mount_is_the_own_group(tree: Tree) -> None:
    tree.v2("/")
    tree.write("/sys/fs/cgroup/cpu.max", "400000 100000\n")
    found = tree.quota()
    assert found.cpus == 4


def test_v2_without_limits(tree: Tree) -> None:
    tree.v2("/user.slice")
    tree.write("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n")
    tree.write("/sys/fs/cgroup/user.slice/memory.max", "max\n")
    assert tree.quota() == cgroup.Quota()
    assert tree.limit() == cgroup.MemoryLimit()


def test_v1_the_tightest_ancestor_counts(tree: Tree) -> None:
    tree.v1("/slurm/job_7/step_0")
    base = "/sys/fs/cgroup/cpu,cpuacct/slurm"
    for folder, quota in (("", -1), ("/job_7", 800000), ("/job_7/step_0", 1600000)):
        tree.write(f"{base}{folder}/cpu.cfs_quota_us", f"{quota}\n")
        tree.write(f"{base}{folder}/cpu.cfs_period_us", "100000\n")
    found = tree.quota()
    assert found.cpus == 8
    assert Path(found.file).parent.name == "job_7"


def test_v1_in_a_container_paths_start_outside_of_the_mount(tree: Tree) -> None:
    tree.v1("/docker/4f2a", top="/docker/4f2a")
    tree.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n")
    tree.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    found = tree.quota()
    assert found.cpus == 2


@pytest.mark.parametrize("path", ["/../other", "/docker/4f2ab", "/elsewhere"])
def test_a_group_outside_of_the_mount_is_taken_as_its_top(tree: Tree, path: str) -> None:
    tree.v1(path, top="/docker/4f2a")
    mount = tree.root / "sys/fs/cgroup/cpu,cpuacct"
    mount.mkdir(parents=True)
    groups = cgroup.controller("cpu", tree.root)
    assert groups == cgroup.Controller(1, (mount,))


def test_no_controller_no_limit(tree: Tree) -> None:
    tree.write("/proc/self/mountinfo", "22 27 0:21 / /proc rw - proc proc rw\n")
    tree.write("/proc/self/cgroup", "0::/\n")
    assert cgroup.controller("cpu", tree.root).folders == ()
    assert tree.quota() == cgroup.Quota()
    assert tree.limit() == cgroup.MemoryLimit()


def test_throttling_in_both_units(tree: Tree) -> None:
    counters = "nr_periods 40\nnr_throttled 10\n"
    tree.v1("/job")
    job = "/sys/fs/cgroup/cpu,cpuacct/job"
    tree.write(f"{job}/cpu.cfs_quota_us", "200000\n")
    tree.write(f"{job}/cpu.cfs_period_us", "100000\n")
    assert tree.quota().periods is None
    tree.write(f"{job}/cpu.stat", f"{counters}throttled_time 2500000000\n")
    assert tree.quota()[2:] == (40, 10, 2.5)
    assert tree.quota().since(tree.quota()) == (0, 0)
    tree.v2("/job")
    tree.write("/sys/fs/cgroup/job/cpu.max", "200000 100000\n")
    tree.write("/sys/fs/cgroup/job/cpu.stat", f"usage_usec 9\n{counters}throttled_usec 2500000\n")
    assert tree.quota()[2:] == (40, 10, 2.5)


def test_v2_memory_without_what_the_kernel_could_give_back(tree: Tree) -> None:
    tree.v2("/job/rank")
    base = "/sys/fs/cgroup/job"
    tree.write(f"{base}/rank/memory.max", "max\n")
    tree.write(f"{base}/memory.max", f"{32 * GIB}\n")
    tree.write(f"{base}/memory.current", f"{20 * GIB}\n")
    tree.write(f"{base}/memory.stat", f"anon 1\ninactive_file {5 * GIB}\n")
    tree.write(f"{base}/memory.events", "low 0\noom 3\noom_kill 2\n")
    assert tree.limit() == cgroup.MemoryLimit(32 * GIB, 15 * GIB, 2)


def test_v1_memory(tree: Tree) -> None:
    tree.v1("/job")
    base = "/sys/fs/cgroup/memory"
    tree.write(f"{base}/memory.limit_in_bytes", "9223372036854771712\n")
    tree.write(f"{base}/job/memory.limit_in_bytes", f"{8 * GIB}\n")
    tree.write(f"{base}/job/memory.usage_in_bytes", f"{6 * GIB}\n")
    tree.write(f"{base}/job/memory.stat", f"total_inactive_file {GIB}\n")
    tree.write(f"{base}/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert tree.limit() == cgroup.MemoryLimit(8 * GIB, 5 * GIB, 1)


def test_v1_counts_a_killed_process_in_its_own_group(tree: Tree) -> None:
    tree.v1("/job/task")
    base = "/sys/fs/cgroup/memory/job"
    tree.write(f"{base}/memory.limit_in_bytes", f"{8 * GIB}\n")
    tree.write(f"{base}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    tree.write(f"{base}/task/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    limit = tree.limit()
    assert limit is not None
    assert limit.kills == 2


def test_a_limit_above_the_machine_is_none(tree: Tree) -> None:
    tree.v2("/job")
    tree.write("/sys/fs/cgroup/job/memory.max", f"{2**60}\n")
    assert memory(tree.root).limit is None


@pytest.fixture
def group() -> Iterator[Path]:
    """A new cgroup with a tenth of a CPU: a busy process gets more even where others are busy."""
    with control_group.group(*control_group.cpu_share(0.1)) as folder:
        yield folder


def test_a_real_quota_and_its_throttling(group: Path) -> None:
    """A process that never rests uses the quota up, and the collector sees it."""
    program = (
        "import os, pathlib, sys, msgspec\n"
        "from ddoctor.collect.host import cpus\n"
        "pathlib.Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()))\n"
        "worker = os.fork()\n"
        "while not worker: pass\n"
        "try: print(msgspec.json.encode(cpus()).decode())\n"
        "finally: os.kill(worker, 9); os.wait()"
    )
    command = [sys.executable, "-c", program, str(group)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seen = msgspec.json.decode(done.stdout, type=Cpus)
    assert seen.quota == seen.usable == 0.1
    assert Path(seen.quota_file).parent == group
    assert seen.recent_periods is not None
    assert seen.recent_throttled_periods is not None
    assert 0 < seen.recent_throttled_periods <= seen.recent_periods


def test_without_a_quota_nothing_is_waited_for() -> None:
    seen = cpus(look_seconds=float("inf"))
    if seen.quota is not None:
        pytest.skip("this session has a CPU quota")
    assert seen.recent_periods is None
