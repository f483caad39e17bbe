"""`ddoctor attach`: finds the ranks of a job on this host and samples them from outside."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ddoctor.collect import collect
from ddoctor.collect.disks import disks
from ddoctor.collect.gpus import gpus
from ddoctor.collect.host import memory
from ddoctor.collect.kernel_log import kernel_log
from ddoctor.errors import DoctorError
from ddoctor.evidence.gpus import KernelLog
from ddoctor.evidence.host import Disks
from ddoctor.evidence.live import BuildLocks
from ddoctor.evidence.section import Evidence, Section
from ddoctor.live import rank_processes
from ddoctor.live.build_locks import build_locks
from ddoctor.live.gpu_rates import gpu_rates
from ddoctor.live.rank_processes import Found, RankProcess
from ddoctor.live.rates import Rates
from ddoctor.live.records import records
from ddoctor.live.redact import redacted
from ddoctor.live.sampler import Sampler
from ddoctor.live.sampling_rate import SamplingRate
from ddoctor.live.script_source import script_source


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How to sample."""

    native: bool = False
    """Whether to sample native frames too."""
    redact: bool = False
    """Whether to write file names instead of paths."""
    logs: Sequence[Path] = ()
    """Log files of the run."""


def choose(pids: Sequence[int], job: str | None) -> tuple[RankProcess, ...]:
    """Return the ranks of one job on this host.

    Raises:
        DoctorError: there is no job, there are several, or a PID is no rank or launcher.
    """
    found = rank_processes.named(pids) if pids else rank_processes.find()
    jobs = found.jobs
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


def observe(
    rows: Sequence[RankProcess], sampling: SamplingRate, options: SamplingOptions
) -> Iterator[Evidence]:
    """Yield the evidence about these ranks, at each end of the samples.

    Raises:
        DoctorError: py-spy is not installed, or a log cannot be read.
    """
    logged = tuple(_logged(rows, options.logs))
    sampler, rates = Sampler(rows, sampling, native=options.native), Rates()
    for number, end in enumerate(sampling.ends, 1):
        # A hang must be reported soon, which mostly needs no samples of workers.
        last = end == sampling.ends[-1]
        sampler.until(end, workers=number > 1 or last)
        live, use, threads = sampler.summary()
        found: list[Section] = [live, use, threads, *logged]
        # Not before the ranks themselves can be judged.
        if last:
            of_host = msgspec.structs.replace(rates.summary(), host=live.host)
            found += [of_host, *records(rows, live), *host_sections(rows)]
            source = script_source(rows[0])
            found += [source] if source is not None else []
        yield Evidence(map(redacted, found) if options.redact else found)


def _logged(rows: Sequence[RankProcess], paths: Sequence[Path]) -> Iterator[Section]:
    """Yield what the logs say, if there are any."""
    if not paths:
        return iter(())
    # The readers of logs take CPU time to load, which the ranks may need.
    from ddoctor.live import logs

    return logs.sections(
        paths,
        rank_processes.missing(rows),
        first=min((rank for one in rows for rank in one.local), default=0),
        host=socket.gethostname(),
        command=rows[0].script,
    )


def host_sections(rank_processes: Sequence[RankProcess]) -> tuple[Section, ...]:
    """Return the readable sections of these ranks' host; of the kernel log since their start."""
    age = time.time() - min(one.process.create_time() for one in rank_processes)

    def log() -> KernelLog:
        return kernel_log(within=age)

    def written() -> Disks:
        return disks(lambda: _working_folder(rank_processes[0].process.pid))

    def locks() -> BuildLocks:
        return build_locks(rank_processes)

    found = collect(lambda label: None, (memory, written, gpus, gpu_rates, log, locks))
    return tuple(one for one in found if isinstance(one, Section))


def _working_folder(pid: int) -> Path:
    """Return a process's working folder, by path if it is the same outside of the container."""
    seen = Path(f"/proc/{pid}/cwd")
    here = seen.resolve()
    return here if here.exists() and here.samefile(seen) else seen


def _nobody(found: Found) -> str:
    if not found.foreign:
        return "no training runs on this host: no Python process has torch loaded"
    several = len(found.foreign) > 1
    return (
        f"{len(found.foreign)} Python process{'es' if several else ''} cannot be inspected, and "
        f"there is no other training: {rank_processes.remedy()}"
    )


def _told(jobs: Mapping[str, Sequence[RankProcess]]) -> str:
    each = ", ".join(
        f"'{name}' with {len(rows)} rank{'s' * (len(rows) > 1)}" for name, rows in jobs.items()
    )
    return f"{len(jobs)} job{'s run' if len(jobs) > 1 else ' runs'} on this host ({each})"
