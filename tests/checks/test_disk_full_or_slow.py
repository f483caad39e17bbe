from __future__ import annotations

import pytest

from ddoctor.evidence.host import Disk, Disks
from ddoctor.models import Finding, Severity
from tests.conftest import Findings

CAUSE = "disk-full-or-slow"
MB, GB, TB = 10**6, 10**9, 10**12


def disks(
    size: int,
    free: int,
    *,
    reserved: int = 0,
    files: int | None = None,
    files_free: int | None = None,
    writable: bool = True,
    roles: tuple[str, ...] = ("working folder",),
) -> Disks:
    disk = Disk(
        roles=roles,
        path="/data/run",
        mount="/data",
        filesystem="ext4",
        size=size,
        free=free,
        used=size - free - reserved,
        files=files,
        files_free=files_free,
        writable=writable,
    )
    return Disks(host="a", disks=(disk,))


def only(findings: tuple[Finding, ...]) -> Finding:
    (finding,) = findings
    return finding


@pytest.mark.parametrize(("size", "free"), [(64 * MB, MB), (TB, GB), (100 * GB, 0)])
def test_an_error_where_no_checkpoint_fits(findings: Findings, size: int, free: int) -> None:
    finding = only(findings(CAUSE, disks(size, free)))
    assert finding.severity is Severity.ERROR
    assert "working folder" in finding.because
    assert "/data" in finding.fixes[-1].paste


@pytest.mark.parametrize(("size", "free"), [(TB, 40 * GB), (2 * TB, 20 * GB), (60 * GB, 2 * GB)])
def test_a_warning_where_a_large_checkpoint_does_not_fit(
    findings: Findings, size: int, free: int
) -> None:
    finding = only(findings(CAUSE, disks(size, free)))
    assert finding.severity is Severity.WARNING
    assert f"{free / GB:.1f} GB" in finding.because


def test_what_root_keeps_for_itself_does_not_count(findings: Findings) -> None:
    finding = only(findings(CAUSE, disks(TB, GB, reserved=50 * GB)))
    assert "0.1%" in finding.because


def test_tells_of_inodes(findings: Findings) -> None:
    finding = only(findings(CAUSE, disks(TB, 500 * GB, files=60_000_000, files_free=120)))
    assert "120 of 60000000 inodes" in finding.because
    assert "--inodes" in finding.fixes[-1].paste


def test_each_disk_is_told_of(findings: Findings) -> None:
    full = disks(TB, GB).disks[0]
    cache = disks(TB, GB, roles=("Hugging Face cache", "temporary folder")).disks[0]
    first, second = findings(CAUSE, Disks(host="a", disks=(full, cache)))
    assert "hf cache" not in first.fixes[0].paste
    assert "hf cache" in second.fixes[0].paste
    assert "TMPDIR" in second.fixes[1].paste


@pytest.mark.parametrize(
    "healthy",
    [
        pytest.param(disks(100 * TB, 4 * TB), id="4 % of a large disk"),
        pytest.param(disks(TB, 90 * GB), id="a tenth"),
        pytest.param(disks(64 * MB, 64 * MB), id="a small but empty tmpfs"),
        pytest.param(disks(270 * GB, 82 * GB, reserved=160 * GB), id="a large reserve"),
        pytest.param(disks(4 * GB, 0, writable=False), id="a read-only image is full by nature"),
        pytest.param(disks(0, 0), id="a file system without a size"),
        pytest.param(disks(TB, 500 * GB, files=2_000_000, files_free=1_900_000), id="inodes"),
        pytest.param(disks(TB, 500 * GB, files=1000, files_free=900), id="few inodes, unused"),
        pytest.param(disks(TB, 500 * GB, files=10**9, files_free=10**6), id="enough inodes"),
    ],
)
def test_quiet(findings: Findings, healthy: Disks) -> None:
    assert findings(CAUSE, healthy) == ()
