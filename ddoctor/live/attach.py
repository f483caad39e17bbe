"""`ddoctor attach`: find the ranks of a job on this host, and look at them from outside."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from ddoctor.errors import DoctorError
from ddoctor.evidence.section import Evidence
from ddoctor.live import patients
from ddoctor.live.look import Look, called
from ddoctor.live.patients import Found, Patient
from ddoctor.live.redact import redacted

USUAL_SECONDS, WATCHING_SECONDS = 10.0, 4.0
LEAST_SECONDS, MOST_SECONDS = 3.0, 600.0


def span(seconds: float | None, *, watch: bool) -> float:
    """For how long to look at once.

    Raises:
        DoctorError: what was asked for is too short, or too long.
    """
    if seconds is None:
        return WATCHING_SECONDS if watch else USUAL_SECONDS
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise DoctorError(
            f"--seconds: at least {LEAST_SECONDS:.0f}, to tell slow from stopped, "
            f"and at most {MOST_SECONDS:.0f}"
        )
    return seconds


def choose(pids: Sequence[int], job: str | None) -> tuple[Patient, ...]:
    """The ranks of one job on this host.

    Raises:
        DoctorError: there is none, there are several, or a process is not what was asked for.
    """
    found = patients.named(pids) if pids else patients.find()
    jobs = {called(rows[0]): rows for rows in found.jobs.values()}
    if not jobs:
        raise DoctorError(_nobody(found))
    if job is not None:
        chosen = [rows for name, rows in jobs.items() if job in (name, name.rpartition(" ")[2])]
        if not chosen:
            raise DoctorError(f"there is no job '{job}' here; {_told(jobs)}")
        return chosen[0]
    if len(jobs) > 1:
        raise DoctorError(f"{_told(jobs)}: choose one with --job NAME, or give a PID")
    (rows,) = jobs.values()
    return rows


def observe(rows: Sequence[Patient], *seconds: float, redact: bool) -> Iterator[Evidence]:
    """What is seen of these ranks after so many seconds, and after so many more; ``redact``: with
    the names of files in place of their paths.

    Raises:
        DoctorError: py-spy is not there.
    """
    look = Look(rows)
    for more in seconds:
        look.more(more)
        live, use = look.told()
        yield Evidence([redacted(live) if redact else live, use])


def parts(seconds: float) -> tuple[float, ...]:
    """Of a look that takes long: a short one, of which something can be told soon, and the rest."""
    return (LEAST_SECONDS, seconds - LEAST_SECONDS) if seconds >= 2 * LEAST_SECONDS else (seconds,)


def _nobody(found: Found) -> str:
    told = "no training runs on this host: no Python process has torch in it"
    if found.foreign:
        several = len(found.foreign) > 1
        told = (
            f"{len(found.foreign)} Python process{'es' if several else ''} of other users "
            f"cannot be looked into, and there is no training of your own"
        )
        if os.geteuid() != 0:
            told += ": run ddoctor as that user, or as root"
    return told


def _told(jobs: Mapping[str, Sequence[Patient]]) -> str:
    each = ", ".join(f"'{name}' with {_ranks(len(rows))}" for name, rows in jobs.items())
    return f"{len(jobs)} job{'s run' if len(jobs) > 1 else ' runs'} here ({each})"


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count > 1 else ''}"
