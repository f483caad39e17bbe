"""`ddoctor plan`: forecast GPU memory and step time of a training."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ddoctor.forecast.options import PlanRequest
from ddoctor.report.options import ReportOptions


@dataclass(frozen=True, kw_only=True)
class PlanOptions(PlanRequest, ReportOptions):
    """The options of ``ddoctor plan``."""


def plan(options: PlanOptions) -> int:
    """Forecast GPU memory and time; recommend DDP, FSDP or ZeRO."""
    from ddoctor import engine
    from ddoctor.errors import DoctorError
    from ddoctor.evidence.section import Evidence
    from ddoctor.forecast import launch_files, request

    outputs = options.outputs(*options.measured or (), Path(options.model or ""))
    if options.force and options.write is None:
        raise DoctorError("--force goes with --write: it lets --write replace existing files")
    if options.write is not None:
        launch_files.check_folder(options.write, replace=options.force)
    planned = request.plan(options)
    evidence = Evidence([planned])
    report = engine.examine(evidence, "plan")
    with ExitStack() as written:
        # In reverse order, and both: the reader of the report may have gone.
        written.callback(outputs.write, report, evidence)
        if options.write is not None:
            written.callback(launch_files.write, options.write, planned)
    return report.exit_code
