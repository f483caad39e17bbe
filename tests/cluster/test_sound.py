"""Sound hosts, again and again, some with a busy machine under them: nothing is found."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cluster.conftest import MakeCluster
from tests.cluster.test_links import neighbours

pytestmark = pytest.mark.ward

RUNS = 20
TOO_NOISY = "too noisy"


@pytest.mark.parametrize("number", range(RUNS))
def test_nothing_is_found_by_chance(cluster: MakeCluster, tmp_path: Path, number: int) -> None:
    made = cluster(4)
    path = tmp_path / "report.json"
    command = (
        *made.torchrun,
        "-m",
        "ddoctor.probe",
        "--quick",
        "--data=/usr/lib",
        f"--json={path}",
    )
    with neighbours(number % 3, max(os.sched_getaffinity(0))):
        outputs = made.run(*command, environment={"OMP_NUM_THREADS": "1"})
    assert path.exists(), outputs
    report = json.loads(path.read_text())
    told = [one for one in report["findings"] if one["severity"] != "note"]
    assert told == []
    assert report["verdict"] == "healthy" or all(
        TOO_NOISY in one["error"] for one in report["crashed"]
    ), report["crashed"]
