"""What differs between two times of one run: the phase that grew, on which ranks, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from msgspec.structs import replace

from ddoctor import engine
from ddoctor.evidence.section import Evidence
from ddoctor.models import Finding, Severity
from ddoctor.recorder.tape import CHECKPOINT, COLLECTIVE, COUNT, EVALUATION, PHASES
from ddoctor.training.messages import Record
from ddoctor.training.run import Run

ALIKE = 0.5
"""A rank whose phase grew by at least this share of the most is one of those that became slower."""
TRANSFER = "transfer"
ASIDE = (COLLECTIVE, CHECKPOINT, EVALUATION)
TAKEN = 0.05
"""Share of a host's CPUs that others use more than before."""
LOW = 0.2
"""Quantile of the steps that grows like the median where a cause slows each step. Measured on two
virtual CPUs, it grew 0.84 to 1.3 times as much; while these were short, 0.14 to 0.22 times."""
WORSE = 1.5
"""A finding of before whose cost has grown by this is the cause of a change, too."""
Steps = Callable[[int], bool]
"""Whether a step belongs to them."""


@dataclass(frozen=True, kw_only=True)
class Grown:
    """The phase whose growth explains a change."""

    phase: str
    ranks: tuple[int, ...]
    """Empty: all."""
    hosts: tuple[str, ...]
    seconds: float
    """Per step."""


def compared(records: Sequence[Record], command: tuple[str, ...], step: int) -> Comparison | None:
    """The steps of these records before and after one; None: too few are recorded on all ranks."""
    before = run_of(records, command, lambda number: number < step)
    after = run_of(records, command, lambda number: number >= step)
    return Comparison(before, after) if before.judged and after.judged else None


def run_of(records: Sequence[Record], command: tuple[str, ...], wanted: Steps) -> Run:
    """The run in some of its steps, by their numbers."""
    return Run(
        records=[
            replace(one, rows=tuple(row for row in one.rows if wanted(row.number)))
            for one in records
        ],
        command=command,
        warm_up=0,
        limit="",
        lost={},
        hang_states={},
    )


@dataclass(frozen=True)
class Comparison:
    """The same run at two times."""

    before: Run
    after: Run

    @cached_property
    def _changes(self) -> dict[tuple[int, str], float]:
        """Seconds per step that each phase of each rank takes more than before."""
        then, now = _costs(self.before), _costs(self.after)
        return {
            (rank, phase): seconds - then[rank][phase]
            for rank, phases in now.items()
            for phase, seconds in phases.items()
        }

    @property
    def explained(self) -> float:
        """Seconds that the phases of the slowest rank have grown in its fast steps, without its
        waiting."""
        then, now = _costs(self.before, LOW), _costs(self.after, LOW)
        return max(sum(now[rank].values()) - sum(then[rank].values()) for rank in now)

    @property
    def grown(self) -> Grown:
        """What takes longer than before."""
        changes = self._changes
        _, phase = max(changes, key=lambda one: changes[one])
        by_rank = {rank: changes[rank, one] for rank, one in changes if one == phase}
        most = max(by_rank.values())
        ranks = tuple(rank for rank, seconds in by_rank.items() if seconds >= ALIKE * most)
        everywhere = len(ranks) == len(by_rank)
        hosts = {one.rank: one.host for one in self.after.records}
        return Grown(
            phase=phase,
            ranks=() if everywhere else ranks,
            hosts=() if everywhere else tuple(sorted({hosts[rank] for rank in ranks})),
            seconds=most,
        )

    @property
    def longer_batches(self) -> float:
        """How many times as many elements a batch has as before."""
        then, now = _elements(self.before), _elements(self.after)
        return now / then if then and now else 1.0

    @property
    def crowded(self) -> float:
        """Seconds per step that the main thread of a rank waits for a CPU more than before."""
        then, now = _queued(self.before), _queued(self.after)
        return max((now[rank] - then[rank] for rank in now if rank in then), default=0.0)

    @property
    def others(self) -> float | None:
        """CPUs of a host that others than its ranks use more than before; None: few or none."""
        then, now = _others(self.before), _others(self.after)
        cpus = {one.host: one.use.host_cpus for one in self.after.records}
        more = {host: now[host] - then[host] for host in now if host in then}
        return max((one for host, one in more.items() if one >= TAKEN * cpus[host]), default=None)


def cause(before: Evidence, after: Evidence) -> Finding | None:
    """The first finding of after that was none before, or costs more; None: there is none."""
    known = {(one.cause, one.where.ranks): one for one in _findings(before)}
    for finding in _findings(after):
        old = known.get((finding.cause, finding.where.ranks))
        if old is None or _cost(finding) > WORSE * _cost(old):
            return finding
    return None


def _findings(evidence: Evidence) -> Iterator[Finding]:
    for finding in engine.examine(evidence, "run").findings:
        if finding.severity >= Severity.WARNING:
            yield finding


def _cost(finding: Finding) -> float:
    return finding.cost.value if finding.cost is not None else 0.0


def _costs(run: Run, quantile: float = 0.5) -> dict[int, dict[str, float]]:
    """Seconds per step of each phase of each rank; of a collective only the transfer."""
    costs = {}
    for record in run.records:
        rows = run.rows(record)
        waiting = run.together.waiting[record.rank]
        seconds = {
            name: [row.phases[number] for row in rows]
            for number, name in enumerate(PHASES)
            if number not in ASIDE
        }
        seconds[TRANSFER] = [
            max(0.0, row.phases[COLLECTIVE] - waited)
            for row, waited in zip(rows, waiting, strict=True)
        ]
        costs[record.rank] = {
            name: sorted(each)[int(quantile * len(each))] for name, each in seconds.items()
        }
    return costs


def _elements(run: Run) -> float:
    rows = (row for record in run.records for row in run.rows(record))
    return fmean(row.counts[COUNT["elements"]] for row in rows)


@dataclass(frozen=True, kw_only=True)
class _Rate:
    """What the counters of a rank grew by in the judged steps, per second."""

    used: float
    busy: float
    waited: float | None


def _rates(run: Run) -> dict[int, _Rate]:
    found = {}
    for record in run.records:
        begin, end = run.span(record.rank)
        before = [one for one in record.readings if one[0] <= begin] or record.readings[:1]
        after = [one for one in record.readings if one[0] >= end] or record.readings[-1:]
        if not after or after[0][0] <= before[-1][0]:
            continue
        (since, used, busy, waited), (until, used_by, busy_by, waited_by) = before[-1], after[0]
        passed = until - since
        without = waited_by - waited if waited is not None and waited_by is not None else None
        found[record.rank] = _Rate(
            used=(used_by - used) / passed,
            busy=(busy_by - busy) / passed,
            waited=without / passed if without is not None else None,
        )
    return found


def _queued(run: Run) -> dict[int, float]:
    """Seconds per step that the main thread of each rank waited for a CPU, where that is known."""
    return {
        rank: rate.waited * median(rows[rank].end - rows[rank].begin for rows in run.steps)
        for rank, rate in _rates(run).items()
        if rate.waited is not None
    }


def _others(run: Run) -> dict[str, float]:
    """CPUs of each host that others than its ranks used."""
    by_host = defaultdict(list)
    rates = _rates(run)
    for record in run.records:
        if record.rank in rates:
            by_host[record.host].append(rates[record.rank])
    return {
        host: max(one.busy for one in found) - sum(one.used for one in found)
        for host, found in by_host.items()
    }
