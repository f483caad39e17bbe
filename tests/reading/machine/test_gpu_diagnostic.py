"""`dcgmi diag -j`, of DCGM 3 and 4."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddoctor.evidence.printed import GpuDiagnostic
from ddoctor.models import Severity
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read

TESTS = {"Deployment": "software", "Integration": "pcie", "Hardware": "memory"}


def of_dcgm_4(category: str, test: str, warning: str = "", severity: int = 6) -> str:
    """The result for two GPUs, of which the second one fails a test; empty: none."""

    def result(gpu: int, name: str) -> dict[str, Any]:
        failed = warning and gpu == 1 and name == test
        row: dict[str, Any] = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu}
        row["status"] = "Fail" if failed else "Pass"
        if failed:
            row["warnings"] = [{"warning": warning, "error_id": 3, "error_severity": severity}]
        return row

    categories = [
        {
            "category": one,
            "tests": [{"name": name, "results": [result(gpu, name) for gpu in (0, 1)]}],
        }
        for one, name in {**TESTS, category: test}.items()
    ]
    return json.dumps(
        {"DCGM Diagnostic": {"test_categories": categories}, "metadata": {}}, indent=2
    )


def of_dcgm_3(status: str) -> str:
    rows = [
        {"gpu_ids": "0", "status": "Pass"},
        {"gpu_ids": "1", "status": status, "warnings": ["GPU 1 had an uncorrectable memory error"]},
    ]
    tests = [{"name": "GPU Memory", "results": rows}]
    top = {"test_categories": [{"category": "Hardware", "tests": tests}], "version": "3.3.1"}
    return json.dumps({"DCGM GPU Diagnostic": top}, indent=1)


@pytest.mark.parametrize(
    "text", [of_dcgm_4("Hardware", "memory", "a row was wrong"), of_dcgm_3("Fail")]
)
def test_a_failed_test(read: Read, diagnose: Diagnose, text: str) -> None:
    (section,) = read(text).all(GpuDiagnostic)
    assert [one.gpu for one in section.failures] == [1]
    (finding,) = diagnose(text).findings
    assert (finding.cause, finding.where.devices) == ("gpu-hardware-fault", ("cuda:1",))
    assert finding.severity is Severity.ERROR


@pytest.mark.parametrize(
    "text",
    [
        of_dcgm_4("Hardware", "memory"),
        of_dcgm_4("Deployment", "software", "Persistence Mode: it is not enabled", 5),
        of_dcgm_4("Hardware", "pcie", "a setting", 5),
        of_dcgm_3("Pass"),
        of_dcgm_3("Skip"),
        of_dcgm_3("Warn"),
        '{\n "DCGM Diagnostic": {"runtime_error": "cannot connect"}\n}',
    ],
)
def test_what_is_no_fault_raises_no_alarm(diagnose: Diagnose, text: str) -> None:
    assert diagnose(text).findings == ()
