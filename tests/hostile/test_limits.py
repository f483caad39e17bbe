"""Limits of the kernel cost the record, and never the training."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddoctor.cluster.store import free_port
from tests import control_group
from tests.hostile.surroundings import (
    NOBODY,
    RUN,
    TOGETHER,
    TORCHRUN,
    after,
    nobody,
    run,
    script,
    tmpfs,
)

MIB = 2**20
GIB = 2**30
BY_HAND = f"""
export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={free_port()}
RANK=1 LOCAL_RANK=1 "$@" &
RANK=0 LOCAL_RANK=0 "$@"
code=$?
wait $! && exit $code
"""
"""Two ranks without a launcher."""
DOCTOR = (sys.executable, "-m", "ddoctor", "doctor", "--no-probes")


@pytest.mark.ward
@pytest.mark.parametrize(
    ("limit", "recorded"),
    [
        ("--nofile=6", False),
        ("--nofile=9", False),
        ("--nofile=64", True),
        (f"--as={3 * GIB}", True),
        ("--fsize=100000", False),
        ("--fsize=8000000", True),
        ("--stack=1000000", True),
        ("--memlock=0", True),
        ("--core=0", True),
    ],
)
def test_a_run_under_a_limit(tmp_path: Path, limit: str, recorded: bool) -> None:
    path = str(script(tmp_path))
    bare = run(sys.executable, path, within=("prlimit", limit), environment={"CODE": "3"})
    if (bare.code, bare.ends) != (3, 1):
        pytest.skip(f"no training runs here with {limit}: {bare.stderr[-200:]}")
    words = (*RUN, sys.executable, path)
    ran = run(*words, within=("prlimit", limit), environment={"CODE": "3"}, internal=not recorded)
    assert (ran.code, ran.ends) == (3, 1)
    assert len(ran.said) == (0 if recorded else 1), ran.said
    assert ("step" in ran.stdout) is recorded


@pytest.mark.ward
@pytest.mark.parametrize("mib", [800, 900, 1024, 1300])
def test_a_run_near_the_address_space_that_torch_needs(tmp_path: Path, mib: int) -> None:
    """OpenBLAS ends a process that has too little, so the supervisor must not load it."""
    path, within = str(script(tmp_path)), ("prlimit", f"--as={mib * MIB}")
    bare = run(sys.executable, path, within=within, environment={"CODE": "3"})
    if (bare.code, bare.ends) != (3, 1):
        pytest.skip(f"no training runs here with {mib} MiB: {bare.stderr[-200:]}")
    ran = run(*RUN, sys.executable, path, within=within, environment={"CODE": "3"})
    assert (ran.code, ran.ends, ran.said) == (3, 1, []), ran.stderr
    assert "step" in ran.stdout


@pytest.mark.ward
@pytest.mark.parametrize("mib", [1024, 1300, 2048])
def test_the_rank_that_opens_the_store_loads_torch_only_where_it_has_room(
    tmp_path: Path, mib: int
) -> None:
    path = str(script(tmp_path, TOGETHER))
    within = ("prlimit", f"--as={mib * MIB}", "sh", "-c", BY_HAND, "sh")
    bare = run(*within, sys.executable, path)
    if (bare.code, bare.ends) != (0, 2):
        pytest.skip(f"no training runs here with {mib} MiB: {bare.stderr[-200:]}")
    ran = run(*within, sys.executable, "-m", "ddoctor.probe", "run", "--no-prove", path)
    assert ran.ends == 2, ran.stderr
    # Either both ranks are recorded, or each says why not.
    assert ("step" in ran.stdout) is (not ran.said), ran.said


@pytest.mark.ward
@pytest.mark.parametrize("limit", ["--nofile=64", f"--as={4 * GIB}"])
def test_two_ranks_under_a_limit(tmp_path: Path, limit: str) -> None:
    path = str(script(tmp_path, TOGETHER))
    ran = run(*RUN, *TORCHRUN, "2", path, within=("prlimit", limit))
    assert ran.ends == 2
    assert not ran.said


@pytest.mark.parametrize("files", [20, pytest.param(64, marks=pytest.mark.ward)])
def test_doctor_with_few_descriptors(files: int) -> None:
    ran = run(*DOCTOR, "--json", "-", within=("prlimit", f"--nofile={files}"))
    causes = [one["cause"] for one in json.loads(ran.stdout)["findings"]]
    assert "file-descriptor-limit-low" in causes
    assert ran.code == 1


@pytest.mark.ward
@pytest.mark.parametrize("processes", [1, 2, 4, 12])
def test_a_user_who_may_start_few_processes(tmp_path: Path, processes: int) -> None:
    """Root has no such limit. What the script itself cannot start, it does not start either way."""
    within = ("prlimit", f"--nproc={processes}", *nobody())
    tmp_path.chmod(0o777)
    path = script(tmp_path, "print('the end', flush=True)\nraise SystemExit(3)\n")
    ran = run(*RUN, sys.executable, str(path), within=within, folder=tmp_path)
    assert (ran.code, ran.ends) == (3, 1), ran.stderr


@pytest.mark.ward
def test_a_user_without_rights(tmp_path: Path) -> None:
    within = nobody()
    tmp_path.chmod(0o777)
    words = (*RUN, "--json", "report.json", *TORCHRUN, "2", str(script(tmp_path, TOGETHER)))
    ran = run(*words, within=within, folder=tmp_path, environment={"HOME": "/nonexistent"})
    assert (ran.ends, ran.said) == (2, []), ran.stderr
    assert (tmp_path / "report.json").stat().st_uid == NOBODY


@pytest.fixture
def one_gib() -> Iterator[Path]:
    """The list of processes of a cgroup with 1 GiB of memory."""
    with control_group.group(*control_group.memory(GIB)) as folder:
        yield folder / "cgroup.procs"


@pytest.mark.ward
def test_two_ranks_in_1_gib(tmp_path: Path, one_gib: Path) -> None:
    report = tmp_path / "report.json"
    words = (*RUN, "--json", str(report), *TORCHRUN, "2", str(script(tmp_path, TOGETHER)))
    ran = run(*words, within=after(f"echo $$ > {one_gib}"))
    assert ran.ends == 2, ran.stderr
    assert "dead-rank" not in [one["cause"] for one in json.loads(report.read_text())["findings"]]


@pytest.mark.ward
def test_no_shared_memory(tmp_path: Path) -> None:
    path = str(script(tmp_path, TOGETHER))
    for prepare in "umount /dev/shm", tmpfs("/dev/shm", "4k"):
        ran = run(*RUN, *TORCHRUN, "2", path, within=after(prepare, "--mount"))
        assert ran.ends == 2
        assert not ran.said


@pytest.mark.ward
@pytest.mark.parametrize("gone", ["/sys", "/proc", "/dev"])
def test_a_file_system_of_the_kernel_is_missing(tmp_path: Path, gone: str) -> None:
    devices = "; ".join(
        f"mknod -m 666 /dev/{name} c 1 {minor}" for name, minor in (("null", 3), ("urandom", 9))
    )
    prepare = f"mount -t tmpfs none {gone}" + (f"\n{devices}" if gone == "/dev" else "")
    words = (*RUN, sys.executable, str(script(tmp_path)))
    within = after(prepare, "--mount")
    ran = run(*words, within=within, environment={"CODE": "3"})
    assert (ran.code, ran.ends) == (3, 1)
    assert (ran.said == []) == (gone != "/proc"), ran.said
