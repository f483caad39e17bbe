"""What ``run`` and ``attach`` tell of a patient."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.ward.case import Case
from tests.ward.running import Examined, examine, started

recorded = examine
TRAINS, MOST_SECONDS = "steps/s", 60.0
SETTLED_SECONDS = 8.0
"""After the first rate: a fault that comes at a step has come by then."""


def attached(case: Case, folder: Path) -> Examined:
    """Look for 10 s at the case while it runs."""
    report, log = folder / "report.json", folder / "log.txt"
    with started(case) as process:
        assert process.stdout is not None
        next((line for line in process.stdout if TRAINS in line), None)
        time.sleep(SETTLED_SECONDS)
        told = subprocess.run(
            (sys.executable, "-m", "ddoctor", "attach", f"--json={report}", str(process.pid)),
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
        )
    log.write_text(told.stderr)
    return Examined(
        exit_code=told.returncode,
        report=json.loads(report.read_text()) if report.exists() else None,
        bundle=folder,
        output=told.stdout,
    )


def line_told(examined: Examined, here: Sequence[int]) -> bool:
    """Whether the first finding names one of these lines of the script."""
    text = json.dumps(examined.findings[0])
    return any(re.search(rf"train\.py:{line}\b|\"line\": {line}\b", text) for line in here)
