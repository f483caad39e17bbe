"""`ddoctor doctor`: check the settings of this machine and measure it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddoctor.report.options import ReportOptions

if TYPE_CHECKING:
    from ddoctor.evidence.section import Evidence, Section

PROBE_LIMIT_SECONDS = 45.0
"""Limit for all probes together; it keeps the whole command under a minute."""


def _complete(typed: str) -> list[str]:
    from ddoctor.probing import catalog

    return [name for name in catalog.names() if name.startswith(typed)]


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(ReportOptions):
    """The options of ``ddoctor doctor``."""

    probe: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Run only this probe; repeatable.", autocompletion=_complete
        ),
    ] = None
    no_probes: Annotated[
        bool, typer.Option("--no-probes", help="Read settings only; measure nothing.")
    ] = False
    data: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Training data whose read speed is measured.")
    ] = Path()
    force: Annotated[
        bool, typer.Option("--force", help="Also measure GPUs that other processes use.")
    ] = False


def doctor(options: DoctorOptions) -> int:
    """Check this machine: settings, GPUs, network, storage."""
    from ddoctor import engine
    from ddoctor.errors import DoctorError
    from ddoctor.probing import catalog
    from ddoctor.report.output import progress

    if options.probe and options.no_probes:
        raise DoctorError("--probe and --no-probes exclude each other: give one of them")
    outputs = options.outputs()
    probes = () if options.no_probes else catalog.choose(options.probe)
    with progress() as started:
        evidence = _observe(probes, options.data, options.force, started)
    report = engine.examine(evidence, "doctor")
    outputs.write(report, evidence)
    return report.exit_code


def _observe(
    probes: Sequence[str], data: Path, force: bool, started: Callable[[str], None]
) -> Evidence:
    """Collect sections, then run the probes; Ctrl-C keeps the sections made so far.

    Raises:
        DoctorError: the data folder does not exist.
    """
    import socket

    from ddoctor.cluster import local_probes
    from ddoctor.collect import collect
    from ddoctor.errors import DoctorError
    from ddoctor.evidence.section import Absence, Absent, Evidence, Section

    if not data.is_dir():
        raise DoctorError(f"there is no folder {data}: give --data the folder of the training data")
    sections: list[Section] = []
    absences: list[Absence] = []
    try:
        for outcome in collect(lambda label: started(f"reading {label}")):
            if isinstance(outcome, Section):
                sections.append(outcome)
            else:
                absences.append(outcome)
        if probes:
            sections += local_probes.measure(
                probes,
                limit=PROBE_LIMIT_SECONDS,
                data=data,
                force=force,
                started=lambda name: started(f"measuring {name}"),
            )
    except KeyboardInterrupt:
        absences.append(Absence(section="the rest", why="interrupted", crashed=True))
    return Evidence((*sections, Absent(host=socket.gethostname(), sections=tuple(absences))))
