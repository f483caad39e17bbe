"""Runs a case: by itself, to see how fast it is, and under ddoctor, to see what is told of it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from ddoctor.proc import processes
from tests.conftest import STEERING
from tests.ward.case import Case

SCRIPTS = Path(__file__).with_name("scripts")
TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run"),
    "--standalone",
    "--nproc-per-node",
)
MARK = "DDOCTOR_TEST_WARD"
STEPS = 40
LIMIT_SECONDS = 240.0
"""A hang is told after 90 s without a step."""
# The scripts print their rate every few steps: the first is that of the start, and the best one was
# disturbed least by whatever else this machine does.
RATE = re.compile(r"([\d.]+) steps/s")
LEFT_OUT, RATES = 1, 5
PERIOD = 100_000
"""Of a CPU quota, in microseconds."""


class Impossible(Exception):
    """Why a case cannot be run here."""


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What ddoctor told of one run of a case."""

    exit_code: int
    report: Mapping[str, Any] | None
    bundle: Path
    output: str

    @property
    def findings(self) -> Sequence[Mapping[str, Any]]:
        """In the order to fix them."""
        return [] if self.report is None else self.report["findings"]

    @property
    def first(self) -> str:
        """The cause to fix first; empty: none was told."""
        return self.findings[0]["cause"] if self.findings else ""

    @property
    def alarms(self) -> list[str]:
        """The causes told as a warning or an error."""
        return [one["cause"] for one in self.findings if one["severity"] != "note"]

    def fault_of(self, case: Case) -> str:
        """What is wrong with what was told; empty: nothing."""
        if self.report is None:
            return f"no report, exit code {self.exit_code}"
        crashed = [one["check"] for one in self.report["crashed"]]
        if crashed:
            return f"crashed: {', '.join(crashed)}"
        if not case.sick:
            return f"false alarm: {', '.join(self.alarms)}" if self.alarms else ""
        if self.first not in case.roots:
            return f"told {self.first or 'nothing'} first"
        ranks = self.findings[0]["where"]["ranks"]
        return f"told ranks {ranks}" if case.rank is not None and ranks != [case.rank] else ""


def examine(case: Case, folder: Path) -> Examined:
    """Run the case at its dose under ddoctor, and leave report and evidence in the folder."""
    report, bundle = folder / "report.json", folder / "evidence.json"
    command = (
        *("-m", "ddoctor.probe", "run", f"--steps={STEPS}", "--no-prove"),
        *(f"--json={report}", f"--bundle={bundle}"),
        *(str(SCRIPTS / f"{case.script}.py"), *_arguments(case)),
    )
    with _started(case, command) as process:
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
    return Examined(
        exit_code=process.returncode,
        report=json.loads(report.read_text()) if report.exists() else None,
        bundle=bundle,
        output=output,
    )


def started(case: Case) -> AbstractContextManager[subprocess.Popen[str]]:
    """The case at its dose, without ddoctor, until the context ends."""
    return _started(case, (str(SCRIPTS / f"{case.script}.py"), *_arguments(case)))


def step_seconds(case: Case) -> float:
    """How long a step of the case takes at its dose, without ddoctor."""
    return _step(case, _arguments(case))


def sound_step_seconds(case: Case) -> float:
    """How long a step of the same script takes without the fault."""
    return _step(replace(case, cpus=None), (*case.base, *case.cure), ranks=1 if case.alone else 2)


def _arguments(case: Case) -> tuple[str, ...]:
    return (*case.base, *case.fault, *_graded(case))


def _graded(case: Case) -> tuple[str, ...]:
    if case.graded is None or case.dose is None:
        return ()
    both_doses = replace(case, name="", fault=(), dose=None, sampled=False)
    step = _known_sound_step(both_doses)
    return (f"{case.graded.option}={case.graded.milliseconds(step, case.dose):.3f}",)


_known_sound_step = cache(sound_step_seconds)


def _step(case: Case, arguments: Sequence[str], ranks: int = 2) -> float:
    command = (str(SCRIPTS / f"{case.script}.py"), *arguments)
    with _started(case, command, ranks) as process:
        assert process.stdout is not None
        lines: list[str] = []
        rates = list(islice(_rates(process.stdout, lines), LEFT_OUT + RATES))
    assert len(rates) > LEFT_OUT, "".join(lines)
    return 1 / max(rates[LEFT_OUT:])


def _rates(output: Iterator[str], lines: list[str]) -> Iterator[float]:
    for line in output:
        lines.append(line)
        if found := RATE.search(line):
            yield float(found[1])


@contextmanager
def _started(case: Case, command: Sequence[str], ranks: int = 2) -> Iterator[subprocess.Popen[str]]:
    """The case under torchrun; nothing of it is left afterwards."""
    if case.requires and importlib.util.find_spec(case.requires) is None:
        raise Impossible(f"{case.requires} is not installed")
    mark = uuid.uuid4().hex
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(STEERING)}
    # What a script prints has to come at once.
    ours = {MARK: mark, "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    if ranks == 1:
        ours["OMP_NUM_THREADS"] = "1"  # as torchrun does for several ranks
    with _quota(case.cpus) as within:
        process = subprocess.Popen(
            [*within, *TORCHRUN, str(ranks), *command],
            env=inherited | ours,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            processes.end(2.0, **{MARK: mark})
            if process.stdout is not None:
                process.stdout.close()
            process.wait()


@contextmanager
def _quota(cpus: float | None) -> Iterator[tuple[str, ...]]:
    """A command that executes its arguments in a cgroup with so many CPUs."""
    if cpus is None:
        yield ()
        return
    v1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists()
    group = Path("/sys/fs/cgroup/cpu" if v1 else "/sys/fs/cgroup") / f"ddoctor-ward-{os.getpid()}"
    microseconds = round(cpus * PERIOD)
    try:
        group.mkdir()
    except OSError as error:
        raise Impossible(f"may not make a cgroup: {error}") from error
    try:
        file, words = (
            ("cpu.cfs_quota_us", f"{microseconds}")
            if v1
            else ("cpu.max", f"{microseconds} {PERIOD}")
        )
        try:
            (group / file).write_text(words)
        except OSError as error:
            raise Impossible(f"may not set a CPU quota: {error}") from error
        yield ("sh", "-ec", f'echo $$ > {group / "cgroup.procs"}; exec "$@"', "sh")
    finally:
        group.rmdir()
