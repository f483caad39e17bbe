from __future__ import annotations

import msgspec
import pytest

from ddoctor import engine
from ddoctor.evidence.host import Disk, Disks
from ddoctor.evidence.live import DiskTraffic, HostRates, LiveLook, LiveRank, LiveWorker
from ddoctor.evidence.section import Evidence
from ddoctor.models import Finding, Severity
from tests.conftest import Findings
from tests.live_look import STARVED, WAITING, look, moving

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


SAVES = {"checkpoint": 50, "forward": 20, "backward": 30}


def rates(busy: float = 0.97, written: float = 12.0, host: str = "node-0") -> HostRates:
    disk = DiskTraffic(name="sdb", busy=busy, read=0.5, written=written)
    idle = DiskTraffic(name="sda", busy=0.02, read=0.0, written=0.1)
    return HostRates(host=host, seconds=10.0, load=3.0, disks=(idle, disk))


def loading(rank: int, *states: str) -> LiveRank:
    return msgspec.structs.replace(
        moving(rank, STARVED),
        workers=tuple(LiveWorker(pid=200, state=state, cpu_seconds=0.1) for state in states),
    )


def test_a_disk_that_holds_up_who_saves(findings: Findings) -> None:
    live = look(moving(0, SAVES), moving(1, WAITING, asleep=0.6))
    (finding,) = findings(CAUSE, live, rates())
    assert finding.severity is Severity.WARNING
    assert (finding.where.hosts, finding.where.ranks) == (("node-0",), (0,))
    assert "disk sdb of node-0 was busy for 97% of 10 s at only 12.5 MiB/s" in (finding.because)
    assert "while rank 0 saved for 50% of the time" in finding.because
    report = engine.examine(Evidence([live, rates()]), "attach")
    assert report.findings[0].cause == CAUSE
    assert "checkpoint-stall" in report.findings[0].consequences


def test_a_disk_that_holds_up_who_loads(findings: Findings) -> None:
    live = look(*(loading(rank, "disk-sleep", "sleeping") for rank in range(2)))
    (finding,) = findings(CAUSE, live, rates())
    assert "ranks 0-1 waited for batches for 60% of the time" in finding.because


@pytest.mark.parametrize(
    ("live", "section"),
    [
        (look(moving(0), moving(1)), rates()),
        # Not at work all the time; at work and fast; another host's.
        (look(moving(0, SAVES), moving(1)), rates(busy=0.6)),
        (look(moving(0, SAVES), moving(1)), rates(written=900.0)),
        (look(moving(0, SAVES), moving(1)), rates(host="node-1")),
        # Once; for data, and its workers compute; they wait for something else.
        (look(moving(0, SAVES, visits=1), moving(1)), rates()),
        (look(loading(0, "running", "running"), moving(1)), rates()),
        (look(loading(0), moving(1)), rates()),
    ],
)
def test_is_quiet_on_a_live_run(findings: Findings, live: LiveLook, section: HostRates) -> None:
    assert findings(CAUSE, live, section) == ()
