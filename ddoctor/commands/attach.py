"""`ddoctor attach`: sample a running training from outside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddoctor.report.options import ReportOptions

if TYPE_CHECKING:
    from ddoctor.report.metrics import Metrics


@dataclass(frozen=True, kw_only=True)
class AttachOptions(ReportOptions):
    """The options of ``ddoctor attach``."""

    pids: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="PID",
            help="Process IDs of ranks or their launcher; default: all ranks on this host.",
        ),
    ] = None
    job: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Job to sample if several run on this host."),
    ] = None
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Seconds to sample; default: 10, and 4 per refresh of --watch; twice that if the "
            "ranks need all cores.",
        ),
    ] = None
    watch: Annotated[
        bool, typer.Option("--watch", help="Sample and refresh until you press q.")
    ] = False
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS:]PORT",
            help="Serve Prometheus metrics of --watch; default address: 127.0.0.1.",
        ),
    ] = None
    native: Annotated[
        bool,
        typer.Option(
            "--native", help="Also sample native frames; pauses the process at every sample."
        ),
    ] = False
    log: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Log file of the run; repeatable."),
    ] = None
    redact: Annotated[
        bool, typer.Option("--redact", help="Show file names instead of full paths.")
    ] = False


def attach(options: AttachOptions) -> int:
    """Sample a slow or hanging run without changing it (py-spy)."""
    from ddoctor.errors import DoctorError
    from ddoctor.live import sampling_rate, watching
    from ddoctor.live.attach import SamplingOptions

    outputs = options.outputs(*options.log or ())
    sampling_rate.check(options.seconds)
    if options.prometheus is not None and not options.watch:
        raise DoctorError("--prometheus serves the samples of --watch: give both")
    pids = options.pids or ()
    sampling = SamplingOptions(native=options.native, redact=options.redact, logs=options.log or ())
    if options.watch:
        metrics = _metrics(options.prometheus) if options.prometheus is not None else None
        report, evidence = watching.watch(pids, options.job, options.seconds, sampling, metrics)
    else:
        report, evidence = watching.once(pids, options.job, options.seconds, sampling)
    outputs.write(report, evidence)
    return report.exit_code


def _metrics(address: str) -> Metrics:
    # The HTTP server takes CPU time to load, which the ranks may need.
    from ddoctor.report.metrics import Metrics

    return Metrics(address)
