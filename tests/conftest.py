"""What every test may use."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddoctor import check_catalog, engine
from ddoctor.evidence.section import Evidence, Section
from ddoctor.models import Finding
from ddoctor.proc import interruption
from tests import control_group
from tests.driver import PlayedDriver

Findings = Callable[..., tuple[Finding, ...]]


@pytest.fixture(scope="session", autouse=True)
def signals_as_in_the_foreground() -> None:
    """Of tests in the background, the shell has every process ignore Ctrl-C."""
    for number in interruption.ENDING:
        if signal.getsignal(number) is signal.SIG_IGN:
            # Python starts with a handler of its own for Ctrl-C.
            ctrl_c = number is signal.SIGINT
            signal.signal(number, signal.default_int_handler if ctrl_c else signal.SIG_DFL)


@pytest.fixture
def findings() -> Findings:
    """Run one check by its cause on the sections given; a check that cannot run fails the test."""

    def run(cause: str, *sections: Section) -> tuple[Finding, ...]:
        results = engine.diagnose(Evidence(sections), [check_catalog.load(cause)])
        assert not [result.crashed for result in results if result.crashed], results
        assert any(result.skipped is None for result in results), results
        return tuple(finding for result in results for finding in result.findings)

    return run


LIMIT_SECONDS = 240

# A developer's own settings must not be found in place of the provoked fault.
STEERING = ("NCCL_", "TORCH", "GLOO_", "OMP_", "CUDA_", "ACCELERATE_", "FSDP_", "HF_", "PYTORCH_")


def free_port() -> int:
    """One that nobody listens at, now."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def sampled(cases: Iterable[Any]) -> list[Any]:
    """Each second one of a parameter's values, from the first on; the others are for the ward."""
    return [
        pytest.param(one, marks=pytest.mark.ward) if number % 2 else one
        for number, one in enumerate(cases)
    ]


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


@pytest.fixture(scope="session")
def played_driver(tmp_path_factory: pytest.TempPathFactory) -> PlayedDriver:
    """A driver with NVML's ABI that plays GPUs from a scenario file."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler to build the played driver with")
    return PlayedDriver.build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def part_of_a_cpu() -> Iterator[Path]:
    """The list of processes of a cgroup that gets two fifths of a CPU."""
    with control_group.group(*control_group.cpu_share(0.4)) as folder:
        yield folder / "cgroup.procs"
