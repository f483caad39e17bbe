"""Rank 0's report: judge the records, try the fixes in control runs, write the report."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import perf_counter

from ddoctor import console, engine
from ddoctor.cluster.launcher_environment import explain_failure, restarts
from ddoctor.cluster.store import ClusterStore
from ddoctor.control_arms import trial_candidates
from ddoctor.errors import DoctorError
from ddoctor.evidence import redaction
from ddoctor.evidence.section import Evidence, Section
from ddoctor.evidence.training import Trial, Trials, TrialTurn
from ddoctor.models import Finding, Report
from ddoctor.probing import sweep_request
from ddoctor.report import wording
from ddoctor.report.output import Outputs, progress
from ddoctor.training import growing, merge, review
from ddoctor.training.answer import told
from ddoctor.training.child import Child, NewChild
from ddoctor.training.events import Events
from ddoctor.training.lead import Lead
from ddoctor.training.options import TRIAL_SECONDS, RunOptions
from ddoctor.training.run import Run
from ddoctor.training.whole_run import Show

TRIAL_STEPS = 30
TURNS = 2


def lead(
    store: ClusterStore,
    child: Child,
    new_child: NewChild,
    options: RunOptions,
    script: tuple[str, ...],
    outputs: Outputs,
    reviewed: bytes,
) -> int:
    """Lead the run and report; return the script's exit code if it failed, else the report's, or 2
    if its files cannot be written. It is 0 where ``ddoctor run`` gives the report's itself.

    Raises:
        StoreLost: the store no longer answers.
        Unrecorded: a rank cannot be recorded.
    """
    leader = Lead(store, child, new_child, script)
    unwritten = ""
    follow = _whole if options.whole else _some_steps
    try:
        run, report, evidence = follow(leader, options, outputs, review.read(reviewed, script))
        try:
            outputs.write(report, evidence)
        except DoctorError as error:
            unwritten = redaction.text(f"ddoctor: {error}")
            console.say(unwritten)
    finally:
        if child.over:
            # Once the other ranks end, the launcher sends SIGTERM; this rank still exits with its
            # code. Without a record the scripts continue, and so does this rank.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            leader.finish()
    (own,) = (record for record in run.records if record.rank == child.launched.rank)
    if own.ending.exit_code and not own.ended_by_us:
        return own.ending.exit_code
    # A training that is followed to its end has its own exit code.
    code, outcome = 0 if options.whole else report.exit_code, "ddoctor could not judge the run"
    if unwritten:
        code, outcome = 2, unwritten
    elif report.findings:
        outcome = "ddoctor has findings"
    if not code or told(code):
        return 0
    explain_failure(outcome if unwritten else f"{outcome}: see its report above or in its files")
    return code


def _some_steps(
    leader: Lead, options: RunOptions, outputs: Outputs, reviewed: Iterable[Section]
) -> tuple[Run, Report, Evidence]:
    """Record some steps, try the fixes in control runs, and judge all of it."""
    with progress() as started:
        run = leader.run(int(options.steps), options.seconds, started)
        if run.looked is not None:
            return run, engine.examine(run.looked, "attach"), run.looked
        evidence = Evidence((*merge.sections(run), *reviewed))
        report = engine.examine(evidence, "run")
        changes = _changes(report, run, options.trials) if not leader.interrupted else ()
        trials = _try(leader, changes, run, options.seconds, started)
        if trials:
            evidence = evidence.with_sections(Trials(trials=trials))
            report = engine.examine(evidence, "run")
        if options.memory and not leader.interrupted and growing.worth_it(run.records):
            memory = sweep_request.sizes(options.device_memory)
            wanted = sweep_request.SweepRequest(device_memory=memory)
            swept = growing.grow(leader, wanted, options.seconds, started)
            evidence = evidence.with_sections(swept)
            report = engine.examine(evidence, "run")
    return run, report, evidence


def _whole(
    leader: Lead, options: RunOptions, outputs: Outputs, reviewed: Iterable[Section]
) -> tuple[Run, Report, Evidence]:
    """Follow the run to its own end; a hang is reported while the run still stands."""
    events = Events(options.events, options.on_event, restarts(), quiet=options.quiet)

    def judge(run: Run) -> Sequence[Finding]:
        evidence = Evidence((*merge.sections(run), *reviewed))
        report = engine.examine(evidence, "run")
        with suppress(DoctorError):
            outputs.write_files(report, evidence)
        return wording.serious(report)

    show = _served(options.prometheus) if options.prometheus is not None else None
    run, history = leader.whole_run(events, judge, show, end_hung=options.end_hung)
    events.close()
    evidence = Evidence((*merge.sections(run), *reviewed, history))
    return run, engine.examine(evidence, "run"), evidence


def _served(where: str) -> Show | None:
    """Serves metrics; None: another process has taken the port since it was checked."""
    from ddoctor.training.run_metrics import RunMetrics

    try:
        return RunMetrics(where).show
    except DoctorError as error:
        console.say(f"ddoctor: {error}; the run continues without")
        return None


def _changes(report: Report, run: Run, prove: bool | None) -> tuple[tuple[str, ...], ...]:
    """The changes to try in control runs, as many as the time limit allows."""
    if prove is False or not run.judged:
        return ()
    changes = trial_candidates(report)
    if prove:
        return changes
    start = max(record.ending.time for record in run.records) - sum(
        rows[0].end - rows[0].begin for rows in run.steps
    )
    turn = max(0.0, start) + 2 * TRIAL_STEPS * (run.step_seconds or 0.0)
    affordable = int(TRIAL_SECONDS / (turn * (2 * TURNS - 1)))
    return changes[:affordable]


def _try(
    leader: Lead,
    changes: Sequence[tuple[str, ...]],
    run: Run,
    seconds: float,
    started: Callable[[str], None],
) -> tuple[Trial, ...]:
    """Run control runs: alternately without and with each change (A B A B).

    The recorded run is the first A.
    """
    trials: list[Trial] = []
    without = [TrialTurn(seconds=run.step_seconds)]
    for change in changes:
        with_it: list[TrialTurn] = []
        for turn in range(TURNS):
            if len(without) <= turn:
                started(f"rerunning the script unchanged ({turn + 1} of {TURNS})")
                without.append(_again(leader, (), seconds))
            started(f"rerunning the script with {', '.join(change)} ({turn + 1} of {TURNS})")
            with_it.append(_again(leader, change, seconds))
            if leader.interrupted:
                return tuple(trials)
        trials.append(Trial(change=change, without=tuple(without), with_it=tuple(with_it)))
    return tuple(trials)


def _again(leader: Lead, change: Sequence[str], seconds: float) -> TrialTurn:
    began = perf_counter()
    run = leader.again(change, TRIAL_STEPS, min(seconds, TRIAL_SECONDS))
    if run.step_seconds is not None:
        return TrialTurn(seconds=run.step_seconds)
    failed = next((one.ending for one in run.records if one.ending.exception), None)
    why = f"{failed.exception}: {failed.message}" if failed else run.limit or "no steps recorded"
    return TrialTurn(failure=f"{why[:200]} (after {perf_counter() - began:.0f} s)")
