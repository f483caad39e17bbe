"""`ddoctor doctor`: check the settings of this machine and measure it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ddoctor.options import BEFORE_A_COMMAND
from ddoctor.probing.options import DataFolder, Force, complete
from ddoctor.report.options import ReportOptions

PROBE_LIMIT_SECONDS = 45.0
"""Limit for all probes together; it keeps the whole command under a minute."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(ReportOptions):
    """The options of ``ddoctor doctor``."""

    probe: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Run only this probe; repeatable.", autocompletion=complete
        ),
    ] = None
    no_probes: Annotated[
        bool, typer.Option("--no-probes", help="Read settings only; measure nothing.")
    ] = False
    data: DataFolder = Path()
    force: Force = False
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND",
            help="Launch command, or a Kubernetes manifest: what it would start, and what is wrong "
            "with it. Nothing is started.",
        ),
    ] = None


SETTINGS = {"options_metavar": "[OPTIONS] [--]", "context_settings": BEFORE_A_COMMAND}


def doctor(options: DoctorOptions) -> int:
    """Check this machine, and a launch command before it runs."""
    import os
    import socket

    from ddoctor import engine
    from ddoctor.cluster import local_probes
    from ddoctor.collect import collect, with_absent
    from ddoctor.errors import DoctorError
    from ddoctor.evidence.section import Absence, Evidence, Section
    from ddoctor.probing import catalog
    from ddoctor.report.output import progress
    from ddoctor.training.options import refuse_options

    if options.probe and options.no_probes:
        raise DoctorError("--probe and --no-probes exclude each other: give one of them")
    outputs = options.outputs()
    probes = () if options.no_probes else catalog.choose(options.probe)
    data = options.data
    if not os.path.isdir(data):
        raise DoctorError(
            f"there is no folder {data} that can be read: give --data that of the training data"
        )
    refuse_options(options.command or [], "ddoctor doctor")
    outcomes: list[Section | Absence] = []
    if options.command:
        from ddoctor.launch.review import review

        outcomes += review(options.command, Path())
    with progress() as started:
        try:
            for outcome in collect(lambda label: started(f"reading {label}")):
                outcomes.append(outcome)
            if probes:
                outcomes += local_probes.measure(
                    probes,
                    limit=PROBE_LIMIT_SECONDS,
                    data=data,
                    force=options.force,
                    started=lambda name: started(f"measuring {name}"),
                )
        except KeyboardInterrupt:
            outcomes.append(Absence(section="the rest", why="interrupted", crashed=True))
    evidence = Evidence(with_absent(outcomes, socket.gethostname()))
    report = engine.examine(evidence, "doctor")
    outputs.write(report, evidence)
    return report.exit_code
