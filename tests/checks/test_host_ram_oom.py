from __future__ import annotations

import pytest

from ddoctor.evidence.gpus import KernelLog
from ddoctor.evidence.host import Kernel, Memory
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "host-ram-oom"
GIB = 2**30
KILL = "ut of memory: Killed process 4711 ({}) total-vm:99999kB, anon-rss:8888kB"


def memory(limit: int | None, kills: int | None) -> Memory:
    return Memory(
        host="a",
        total=256 * GIB,
        available=200 * GIB,
        limit=limit,
        used_in_limit=None if limit is None else limit // 2,
        kills_in_limit=kills,
    )


def log(*names: str) -> KernelLog:
    return KernelLog(host="a", source="/dev/kmsg", oom_kills=tuple(map(KILL.format, names)))


def test_tells_of_kills_in_the_own_cgroup(findings: Findings) -> None:
    kernel = Kernel(host="a", release="6.8", container="docker")
    (finding,) = findings(CAUSE, memory(32 * GIB, 3), kernel)
    assert finding.severity is Severity.NOTE
    assert "3 processes" in finding.because
    assert "32.0 GiB" in finding.because
    assert "docker update --memory=256g" in finding.fixes[1].paste


@pytest.mark.parametrize("name", ["python", "python3.11", "pt_main_thread", "pt_data_worker"])
def test_tells_of_kills_that_were_of_a_run(findings: Findings, name: str) -> None:
    (finding,) = findings(CAUSE, log("java", name))
    assert "1 processes" in finding.because
    assert f"({name})" in finding.because
    assert finding.severity is Severity.NOTE


def test_quiet_without_kills(findings: Findings) -> None:
    assert findings(CAUSE, memory(32 * GIB, 0), log()) == ()


def test_quiet_without_a_limit(findings: Findings) -> None:
    assert findings(CAUSE, memory(None, None)) == ()


def test_quiet_where_the_counter_could_not_be_read(findings: Findings) -> None:
    assert findings(CAUSE, memory(32 * GIB, None)) == ()


@pytest.mark.parametrize("name", ["java", "chrome", "mysqld", "pythonic-daemon"])
def test_quiet_where_others_were_killed(findings: Findings, name: str) -> None:
    assert findings(CAUSE, log(name)) == ()
