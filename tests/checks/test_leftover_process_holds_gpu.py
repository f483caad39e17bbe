from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor.evidence.gpus import GpuProcess
from ddoctor.evidence.host import Kernel
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.healthy.gpus import otherwise
from tests.healthy.host import HOST

CAUSE = "leftover-process-holds-gpu"
GIB = 2**30


def held(holder: str = "orphan", idle: bool | None = True, pid: int = 4711) -> dict[str, object]:
    process = GpuProcess(
        pid=pid,
        memory=40 * GIB,
        name="python",
        user="ada",
        holder=holder,  # type: ignore[arg-type]
        idle=idle,
    )
    return {"processes": (process,), "memory_used": 40 * GIB}


def kernel(container: str = "") -> Kernel:
    return Kernel(host=HOST, release="6.8", container=container)


def test_an_idle_orphan(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({0: held()}))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert finding.where.devices == ("cuda:0",)
    assert "40.0 GiB" in finding.because
    assert "kill 4711" in finding.fixes[0].paste


def test_one_orphan_on_two_gpus_is_one_finding(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({0: held(), 1: held()}))
    assert finding.where.devices == ("cuda:0", "cuda:1")
    assert "80.0 GiB" in finding.because


def test_only_a_note_about_memory_without_a_process(findings: Findings) -> None:
    (finding,) = findings(CAUSE, otherwise({0: {"memory_used": 9 * GIB}}), kernel())
    assert finding.severity is Severity.NOTE
    assert "fuser" in finding.fixes[0].paste


def test_a_printed_table_without_a_process(findings: Findings) -> None:
    table = replace(otherwise({0: {"memory_used": 9 * GIB}}), printed=True)
    (finding,) = findings(CAUSE, table)
    assert finding.severity is Severity.NOTE
    assert findings(CAUSE, table, kernel("docker")) == ()


@pytest.mark.parametrize("holder", ["own", "foreign", "hidden"])
def test_quiet_about_everybody_else(findings: Findings, holder: str) -> None:
    assert findings(CAUSE, otherwise({0: held(holder)}), kernel()) == ()


@pytest.mark.parametrize("idle", [False, None])
def test_quiet_about_a_process_at_work(findings: Findings, idle: bool | None) -> None:
    assert findings(CAUSE, otherwise({0: held(idle=idle)}), kernel()) == ()


def test_quiet_about_a_gpu_at_work(findings: Findings) -> None:
    assert findings(CAUSE, otherwise({0: held() | {"utilisation": 3}}), kernel()) == ()


@pytest.mark.parametrize("container", ["docker", "kubernetes"])
def test_quiet_about_memory_of_other_containers(findings: Findings, container: str) -> None:
    assert findings(CAUSE, otherwise({0: {"memory_used": 9 * GIB}}), kernel(container)) == ()


def test_quiet_where_processes_are_unknown(findings: Findings) -> None:
    unknown = {"memory_used": 9 * GIB, "processes": None}
    assert findings(CAUSE, otherwise({0: unknown}), kernel()) == ()
