"""A recorded training run: the script, its speed and its end, and how each rank ended."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten

from ddoctor.analysis.loader_throughput import LoaderThroughput
from ddoctor.evidence.loading import CurvePoint, LoaderCurve, Loading
from ddoctor.evidence.log import Log
from ddoctor.evidence.printed import PrintedOutputs
from ddoctor.evidence.printed_figures import PhaseTimes, PrintedTimes
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.trace import Traces
from ddoctor.evidence.training import Outcome, RankEnding, TrainingRun, Trial, Trials
from ddoctor.models import Verified
from ddoctor.report import run_history
from ddoctor.report.places import listed, ranks
from ddoctor.report.scale import scaling
from ddoctor.report.step_breakdown import TENTHS, StepBreakdown, step_breakdown
from ddoctor.report.wording import counted, proof, quantity

FEW_LOGS = 4
"""Of more logs, only the number is shown."""

LONGEST = 160
"""At most this many characters of a command or an exception are shown."""

BAD = ("failed", "killed", "vanished", "hung")
"""Endings that were not requested."""

CONNECTION_LOST = "lost the connection to another rank"
TIMED_OUT = re.compile(r"timed? ?out|failed to pass monitoredbarrier", re.IGNORECASE)
WORDS: Mapping[Outcome, str] = {
    "stopped": "stopped as requested",
    "finished": "finished the script",
    "interrupted": "interrupted from outside",
    "failed": "failed",
    "killed": "killed",
    "hung": "hung",
    "vanished": "did not respond any more",
}


KNEE = 0.9
"""Share of the best rate from which more workers bring little.

The rest is less than the 10 % from which on a slowdown counts (docs/decisions.md)."""


@dataclass(frozen=True, kw_only=True)
class AtWorkers:
    """A loader with one number of workers, on the rank where it is slowest."""

    num_workers: int
    rate: float
    """Batches per second."""
    start_seconds: float


@dataclass(frozen=True, kw_only=True)
class CurveRow:
    """One loader over the numbers of workers that were tried."""

    name: str
    points: tuple[AtWorkers, ...]
    need: float | None
    """Batches per second of a step that never waits for them; None: not seen."""
    now: int | None
    """The num_workers of the script; None: not seen, or different between ranks."""

    @property
    def knee(self) -> AtWorkers | None:
        """Return the fewest workers with about the best rate; None: more might be faster still."""
        best = max(point.rate for point in self.points)
        found = next(point for point in self.points if point.rate >= KNEE * best)
        return found if found is not self.points[-1] else None


def rows(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line of the report's head."""
    runs = [run for run in evidence.all(TrainingRun) if not run.only_told]
    for log in evidence.all(Log):
        yield ("log" if len(log.files) == 1 else "logs"), _log(log)
    for section in evidence.all(PrintedOutputs):
        yield "machine", _printed(section)
    for times in evidence.all(PrintedTimes):
        yield "times", "; ".join(map(_timed, times.tables[:FEW_LOGS]))
    for run in runs:
        yield "script", _script(run)
        if run.unrecorded:
            yield "recorded", run.unrecorded
        elif len(run.ranks) == 1 and not run.log and run.ranks[0].steps:
            yield "ranks", "one process, which trains alone: torchrun starts several"
    yield from run_history.rows(evidence)
    breakdown = step_breakdown(evidence)
    for traces in evidence.all(Traces):
        yield ("trace" if len(traces.files) == 1 else "traces"), _traced(traces, breakdown)
    if breakdown is not None and not breakdown.steps.traced:
        yield "step", _step(breakdown)
    if scale := scaling(evidence):
        yield "scaling", str(scale)
    for curve in curves(evidence):
        yield "loader alone", _alone(curve)
    for trials in evidence.all(Trials):
        for trial in trials.trials:
            yield "tried", _tried(trial)
    for run in runs:
        if run.ranks:
            yield "ended", _ended(run)


def _log(log: Log) -> str:
    names = listed(log.files) if len(log.files) <= FEW_LOGS else f"{len(log.files):,} files"
    ranks = f" that name {counted(log.ranks, 'rank')}" if log.ranks else ""
    return f"{names}: {counted(log.lines, 'line')}{ranks}"


def _traced(traces: Traces, breakdown: StepBreakdown | None) -> str:
    some = len(traces.ranks) < traces.world
    told = ranks([one.rank for one in traces.ranks]) + f" of {traces.world}"
    text = (
        f"{told if some else counted(traces.world, 'rank')}, {counted(traces.steps, 'whole step')}"
    )
    if breakdown is None:
        return text
    least, most = (breakdown.unit.figure(seconds) for seconds in breakdown.spread)
    return f"{text} of {breakdown.unit(breakdown.steps.step)} ({least} to {most})"


def _printed(section: PrintedOutputs) -> str:
    hosts: dict[str, list[str]] = {}
    for one in section.outputs:
        hosts.setdefault(one.host, []).append(one.command)
    texts = (
        listed([*dict.fromkeys(commands)]) + (f" of {host}" if host else "")
        for host, commands in hosts.items()
    )
    return "; ".join(texts) if len(hosts) <= FEW_LOGS else f"outputs of {len(hosts):,} hosts"


def _timed(table: PhaseTimes) -> str:
    phases = {
        "loader": table.loader,
        "passes": table.passes,
        "communication": table.communication,
        "optimizer": table.optimizer,
        "checkpoints": table.checkpoint,
    }
    shares = [
        f"{name} {seconds / table.whole:.0%}"
        for name, seconds in phases.items()
        if seconds is not None and table.whole
    ]
    return f"{table.tool} ({table.place}): {listed(shares) if shares else 'no phase'}"


def _script(run: TrainingRun) -> str:
    command = short(shlex.join(run.command))
    known = ", ".join(filter(None, (run.framework, listed(run.optimizers))))
    return f"{command} ({known})" if known else command


def _step(breakdown: StepBreakdown) -> str:
    steps, (least, most) = breakdown.steps, breakdown.spread
    within = "all" if steps.count < TENTHS else "8 of 10"
    figure = breakdown.unit.figure
    text = (
        f"{breakdown.unit(steps.step)}, mean of {counted(steps.count, 'step')} on "
        f"{counted(len(steps.ranks), 'rank')} after {counted(steps.warm_up, 'warm-up step')} "
        f"({within} took {figure(least)} to {figure(most)})"
    )
    if breakdown.samples:
        text += f"; {quantity(breakdown.samples, 'samples/s')}"
    return text


def _alone(curve: CurveRow) -> str:
    """Return the slowest rank's rate by number of workers, and the rate that the step could use."""
    rates = ", ".join(f"{quantity(at.rate)} ({at.num_workers})" for at in curve.points)
    text = f"{curve.name}: {rates} batches/s (workers)"
    return f"{text}; the step could use {quantity(curve.need)}" if curve.need else text


def _tried(trial: Trial) -> str:
    """Return the step time without and with a change."""
    change = " ".join(trial.change)
    if trial.after is None:
        failures = [turn.failure for turn in trial.with_it if turn.failure]
        return f"{change}: failed" + (f": {short(failures[0])}" if failures else "")
    if trial.before is None:
        return f"{change}: runs only with it, {quantity(trial.after, 's/step')}"
    told = proof(Verified(before=trial.before, after=trial.after, unit="s/step"))
    return f"{change}: {told}" + ("" if trial.gained else ", no clear gain")


def badly(run: TrainingRun) -> tuple[RankEnding, ...]:
    """Return the ranks that ended badly: those that failed first, then those that followed."""
    bad = [one for one in run.ranks if one.outcome in BAD]
    own = {id(one) for one in run.failures}
    bad.sort(key=lambda one: (id(one) not in own, one.echoes, one.time, one.rank))
    return tuple(bad)


def _ended(run: TrainingRun) -> str:
    """Return the rank that failed first, then the others in groups."""
    bad = badly(run)
    parts = []
    if bad:
        first = " first" if len(bad) > 1 else ""
        words = reason(bad[0])
        text = f"{went(bad[0])}{first} {_when(bad[:1])}" + (f": {words}" if words else "")
        parts.append((bad[:1], text))
    groups: dict[str, list[RankEnding]] = {}
    for one in run.ranks:
        if one not in bad[:1]:
            groups.setdefault(went(one), []).append(one)
    parts += [(tuple(ends), f"{text} {_when(ends)}") for text, ends in groups.items()]
    told = [
        text if len(parts) == 1 else f"{ranks([one.rank for one in ends])} {text}"
        for ends, text in parts
    ]
    limit = f" ({run.limit})" if run.limit else ""
    return f"{'; '.join(told)}{limit}; {quantity(run.seconds, 's')} in total"


def went(one: RankEnding) -> str:
    """Return how a rank ended."""
    if one.outcome == "hung":
        lasted = f" for {quantity(one.doing_seconds, 's')}" if one.doing_seconds else ""
        return f"hung in {one.doing}{lasted}" if one.doing else f"hung{lasted}"
    if one.outcome == "killed" and one.exit_code:
        return f"killed by signal {-one.exit_code}"
    if one.echoes:
        late = TIMED_OUT.search(one.said)
        return "timed out waiting for another rank" if late else CONNECTION_LOST
    return WORDS[one.outcome]


def reason(one: RankEnding) -> str:
    """Return a rank's last message or exit code; empty: none."""
    code = f"exit code {one.exit_code}" if one.outcome == "failed" else ""
    return short(one.words or code)


def _when(ends: Sequence[RankEnding]) -> str:
    least, most = min(one.steps for one in ends), max(one.steps for one in ends)
    return f"after {least} to {most} steps" if least < most else f"after {counted(most, 'step')}"


def short(text: str) -> str:
    """Return the beginning of a long text."""
    return shorten(text, LONGEST, placeholder=" …")


def curves(evidence: Evidence) -> tuple[CurveRow, ...]:
    """Return the curve of each loader that was measured alone."""
    found: dict[str, dict[int, list[CurvePoint]]] = defaultdict(lambda: defaultdict(list))
    for section in evidence.all(LoaderCurve):
        for point in section.points:
            if point.seconds_per_batch > 0:
                found[point.name][point.num_workers].append(point)
    needs: dict[str, list[float]] = defaultdict(list)
    settings: dict[str, set[int]] = defaultdict(set)
    for loading in evidence.all(Loading):
        for loader in loading.loaders:
            settings[loader.name].add(loader.num_workers)
        for steps in evidence.all(Steps):
            for feed in LoaderThroughput.derive(steps, loading).feeds:
                if feed.need > 0:
                    needs[feed.loader.name].append(feed.need)
    return tuple(
        CurveRow(
            name=name,
            points=tuple(
                AtWorkers(
                    num_workers=workers,
                    rate=1 / max(point.seconds_per_batch for point in points),
                    start_seconds=max(point.start_seconds for point in points),
                )
                for workers, points in sorted(tried.items())
            ),
            need=1 / min(needs[name]) if needs[name] else None,
            now=min(settings[name]) if len(settings[name]) == 1 else None,
        )
        for name, tried in found.items()
    )
