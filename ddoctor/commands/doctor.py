"""`ddoctor doctor`: look at this machine, measure what it can do, lose nothing on the way."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from ddoctor.collect import collect
from ddoctor.errors import DoctorError
from ddoctor.evidence.section import Absence, Absent, Evidence, Section
from ddoctor.probing import launch

PROBE_LIMIT_SECONDS = 45.0
"""For all probes together: the whole command stays under a minute."""


def observe(
    probes: Sequence[str],
    *,
    data: Path,
    force: bool,
    started: Callable[[str], None],
) -> Evidence:
    """Collect, then run the probes; an interruption keeps what there is and is itself recorded.

    Raises:
        DoctorError: the data folder is not there.
    """
    if not data.is_dir():
        raise DoctorError(f"there is no folder {data}: give --data the folder of the training data")
    sections: list[Section] = []
    absences: list[Absence] = []
    try:
        for outcome in collect(lambda label: started(f"looking at {label}")):
            if isinstance(outcome, Section):
                sections.append(outcome)
            else:
                absences.append(outcome)
        if probes:
            sections += launch.launch(
                probes,
                limit=PROBE_LIMIT_SECONDS,
                data=data,
                force=force,
                started=lambda name: started(f"measuring {name}"),
            )
    except KeyboardInterrupt:
        absences.append(Absence(section="the rest", why="interrupted", crashed=True))
    return Evidence((*sections, Absent(host=socket.gethostname(), sections=tuple(absences))))
