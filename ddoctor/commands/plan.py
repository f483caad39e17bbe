"""`ddoctor plan`: forecast GPU memory and step time of a training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ddoctor.forecast.options import PlanRequest
from ddoctor.report.options import ReportOptions


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Options for the launch files that ``ddoctor plan`` writes."""

    write: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write launch files for accelerate and torchrun."),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Let --write replace existing launch files.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class PlanOptions(PlanRequest, LaunchOptions, ReportOptions):
    """The options of ``ddoctor plan``."""


def plan(options: PlanOptions) -> int:
    """Forecast GPU memory and time; recommend DDP or FSDP."""
    from ddoctor import engine
    from ddoctor.errors import DoctorError
    from ddoctor.evidence.section import Evidence
    from ddoctor.forecast import request
    from ddoctor.forecast.launch_folder import LaunchFolder

    outputs = options.outputs()
    if options.force and options.write is None:
        raise DoctorError("--force goes with --write: it lets --write replace existing files")
    path = options.write
    folder = LaunchFolder(path=path, replace=options.force) if path is not None else None
    planned = request.plan(options)
    evidence = Evidence([planned])
    report = engine.examine(evidence, "plan")
    outputs.write(report, evidence)
    if folder is not None:
        folder.write(planned)
    return report.exit_code
