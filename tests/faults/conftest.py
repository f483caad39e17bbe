"""Real faults: provoked on this machine, and told by the whole command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

LIMIT_SECONDS = 240

# A developer's own settings must not be found in place of the provoked fault.
STEERING = ("NCCL_", "TORCH", "GLOO_", "OMP_", "CUDA_", "ACCELERATE_", "FSDP_", "HF_", "PYTORCH_")


@dataclass(frozen=True, kw_only=True)
class Examined:
    """One run of the command line."""

    exit_code: int
    report: Mapping[str, Any]
    stderr: str

    @property
    def causes(self) -> list[str]:
        """The causes found, in the order to fix them."""
        return [finding["cause"] for finding in self.report["findings"]]

    @property
    def first(self) -> Mapping[str, Any]:
        """The finding to fix first."""
        findings: Sequence[Mapping[str, Any]] = self.report["findings"]
        assert findings, self.report
        return findings[0]


Doctor = Callable[..., Examined]


@pytest.fixture
def doctor() -> Doctor:
    """Run ``ddoctor doctor --json -`` with these arguments, by default without probes.

    ``within`` is a command that prepares the fault and then executes its own arguments, such as
    ``("prlimit", "--nofile=64", "--")``.
    """

    def run(
        *arguments: str,
        within: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Examined:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(STEERING)}
        command = [sys.executable, "-m", "ddoctor", "doctor", "--json", "-"]
        done = subprocess.run(
            [*within, *command, *(arguments or ("--no-probes",))],
            env=inherited | {"PYTHONSAFEPATH": "1"} | dict(environment or {}),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        assert done.stdout.strip(), f"no report, exit code {done.returncode}:\n{done.stderr}"
        return Examined(
            exit_code=done.returncode, report=json.loads(done.stdout), stderr=done.stderr
        )

    return run
