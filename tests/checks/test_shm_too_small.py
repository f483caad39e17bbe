from __future__ import annotations

import pytest

from ddoctor.evidence.host import Kernel, Memory, SharedMemory
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.logged import event, logged

MIB = 2**20


def shm(size: int) -> SharedMemory:
    return SharedMemory(host="a", size=size, free=size)


@pytest.mark.parametrize("mib", [16, 64, 255])
def test_fires_as_an_error_where_runs_die(findings: Findings, mib: int) -> None:
    (finding,) = findings("shm-too-small", shm(mib * MIB))
    assert finding.severity is Severity.ERROR
    assert f"{mib} MiB" in finding.because
    assert finding.where.hosts == ("a",)


def test_warns_where_it_is_tight(findings: Findings) -> None:
    (finding,) = findings("shm-too-small", shm(512 * MIB))
    assert finding.severity is Severity.WARNING


def test_the_fix_fits_the_memory(findings: Findings) -> None:
    for total, gib in ((2, 1), (24, 12), (2048, 16)):
        memory = Memory(host="a", total=total * 2**30, available=2**30)
        (finding,) = findings("shm-too-small", shm(64 * MIB), memory)
        assert f"size={gib}G" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("container", "words"),
    [("podman", "podman run --shm-size=16g"), ("kubernetes", "medium: Memory"), ("", "remount")],
)
def test_the_fix_is_made_for_where_it_runs(findings: Findings, container: str, words: str) -> None:
    kernel = Kernel(host="a", release="6.1", container=container)
    (finding,) = findings("shm-too-small", shm(64 * MIB), kernel)
    assert words in finding.fixes[0].paste


@pytest.mark.parametrize("mib", [1024, 8 * 1024, 1024 * 1024])
def test_quiet_where_it_is_enough(findings: Findings, mib: int) -> None:
    assert findings("shm-too-small", shm(mib * MIB)) == ()


def test_quiet_when_it_is_large_but_in_use(findings: Findings) -> None:
    assert findings("shm-too-small", SharedMemory(host="a", size=16 * 2**30, free=2**30)) == ()


def test_transfers_by_files_in_shared_memory(findings: Findings) -> None:
    full = event("disk-full", text="OSError: [Errno 28] No space left on device")
    (finding,) = findings("shm-too-small", logged(event("memory-files"), full))
    assert finding.severity is Severity.ERROR
    assert findings("disk-full-or-slow", logged(event("memory-files"), full)) == ()
    assert findings("shm-too-small", logged(event("memory-files"))) == ()
    assert findings("shm-too-small", logged(full)) == ()
