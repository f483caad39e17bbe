"""`ddoctor attach`: finds the ranks of a job on this host and samples them from outside."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ddoctor.errors import DoctorError
from ddoctor.evidence.section import Evidence, Section
from ddoctor.evidence.training import TrainingRun
from ddoctor.live import rank_processes
from ddoctor.live.host_sections import host_sections
from ddoctor.live.logs import last_words
from ddoctor.live.rank_processes import Found, RankProcess
from ddoctor.live.rates import Rates
from ddoctor.live.records import records
from ddoctor.live.redact import redacted
from ddoctor.live.sampler import Sampler, called, script


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How to sample."""

    native: bool = False
    """Whether to sample native frames too."""
    redact: bool = False
    """Whether to write file names instead of paths."""
    logs: Sequence[Path] = ()
    """Log files of the ranks, for the last messages of ranks that have exited."""


def choose(pids: Sequence[int], job: str | None) -> tuple[RankProcess, ...]:
    """Return the ranks of one job on this host.

    Raises:
        DoctorError: there is no job, there are several, or a PID is no rank or launcher.
    """
    found = rank_processes.named(pids) if pids else rank_processes.find()
    jobs = _by_name(found)
    if not jobs:
        raise DoctorError(_nobody(found))
    if job is not None:
        chosen = [rows for name, rows in jobs.items() if job in (name, name.rpartition(" ")[2])]
        if not chosen:
            raise DoctorError(f"no job '{job}' on this host; {_told(jobs)}")
        return chosen[0]
    if len(jobs) > 1:
        raise DoctorError(f"{_told(jobs)}: choose one with --job NAME, or give a PID")
    (rows,) = jobs.values()
    return rows


def _by_name(found: Found) -> Mapping[str, tuple[RankProcess, ...]]:
    names = Counter(called(rows[0]) for rows in found.jobs.values())
    return {
        # In two containers they may be called the same.
        name if names[name] == 1 else f"process {rows[0].process.pid}": rows
        for rows in found.jobs.values()
        for name in [called(rows[0])]
    }


def observe(
    rows: Sequence[RankProcess], *ends: float, options: SamplingOptions
) -> Iterator[Evidence]:
    """Yield the evidence about these ranks, at each of these times in seconds.

    Raises:
        DoctorError: py-spy is not installed, or a log cannot be read.
    """
    ended = tuple(_ended(rows, options.logs))
    sampler, rates = Sampler(rows, native=options.native), Rates()
    for number, end in enumerate(ends, 1):
        # A hang must be reported soon, which mostly needs no samples of workers.
        sampler.until(end, workers=number > 1 or number == len(ends))
        live, use = sampler.summary()
        found: list[Section] = [live, use, *ended]
        # Not before the ranks themselves can be judged.
        if number == len(ends):
            of_host = msgspec.structs.replace(rates.summary(), host=live.host)
            found += [of_host, *records(rows, live), *host_sections(rows)]
        yield Evidence(map(redacted, found) if options.redact else found)


def _ended(rows: Sequence[RankProcess], logs: Sequence[Path]) -> Iterator[TrainingRun]:
    """Yield what the logs say about the ranks that have exited."""
    first = min((rank for one in rows for rank in one.local), default=0)
    host = socket.gethostname()
    if ranks := last_words(logs, rank_processes.missing(rows), first, host):
        yield TrainingRun(
            host=host,
            command=script(rows[0].command),
            seconds=0.0,
            ranks=ranks,
            log=" and ".join(path.name for path in logs),
        )


def _nobody(found: Found) -> str:
    if not found.foreign:
        return "no training runs on this host: no Python process has torch loaded"
    several = len(found.foreign) > 1
    return (
        f"{len(found.foreign)} Python process{'es' if several else ''} cannot be inspected, and "
        f"there is no other training: {rank_processes.remedy()}"
    )


def _told(jobs: Mapping[str, Sequence[RankProcess]]) -> str:
    each = ", ".join(f"'{name}' with {_ranks(len(rows))}" for name, rows in jobs.items())
    return f"{len(jobs)} job{'s run' if len(jobs) > 1 else ' runs'} on this host ({each})"


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count > 1 else ''}"
