"""Gives each check the evidence that it names, and makes a report of the findings."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ddoctor import check_catalog, knowledge
from ddoctor.analysis import unexplained
from ddoctor.analysis.derived import Derived
from ddoctor.analysis.flight_records import by_nccl
from ddoctor.analysis.live_state import LiveState, unjudged
from ddoctor.check_catalog import Check, Need, Way
from ddoctor.control_arms import proven
from ddoctor.evidence.cluster_probes import ControlArms
from ddoctor.evidence.flight_records import FlightRecords
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.log import Log
from ddoctor.evidence.printed_pace import PrintedPace
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.run_history import RunHistory
from ddoctor.evidence.script import Script
from ddoctor.evidence.section import Absent, Evidence, Known, Section
from ddoctor.evidence.steps import Lines, Steps
from ddoctor.evidence.trace import Traces
from ddoctor.evidence.training import TrainingRun, Trials
from ddoctor.models import (
    JUDGING,
    Command,
    Confidence,
    Crashed,
    Finding,
    Report,
    Result,
    Severity,
    Skipped,
    Verdict,
    World,
)
from ddoctor.order import FAILURES, confirmed, order

ENDINGS = {"skipped": "was skipped", "interrupted": "was interrupted"}
"""Words for how a probe ended; `hung` and `crashed` need no other words."""

FEWEST_STEPS = 10
"""A slowdown must persist over this many steps of a run to be reported (GREYHOUND, ATC'25)."""

FEW = 6
"""A reason counts more hosts than this instead of naming them."""


def diagnose(evidence: Evidence, checks: Sequence[Check]) -> tuple[Result, ...]:
    """Run every way of every check that has its evidence; the others are skipped with a reason."""
    ways = tuple(way for check in checks for way in check.ways)
    # A table takes longer to read than most checks to judge.
    tables = {need.section for way in ways if _can(way, evidence) for need in way.needs.values()}
    known = (knowledge.load(table) for table in tables if issubclass(table, Known))
    informed = evidence.with_sections(*known)
    derived: dict[tuple[object, ...], Derived] = {}
    why = cache(partial(_why_missing, informed))
    return tuple(result for way in ways for result in _run(way, informed, derived, why))


def examine(evidence: Evidence, command: Command) -> Report:
    """Judge the evidence by all checks and return the report."""
    checks = check_catalog.discover()
    results = diagnose(evidence, checks)
    # A check that a recorded run or an attached one could never feed is not listed as skipped.
    own: Command | None = command if command == "run" else None
    if evidence.all(LiveLook) and all("attach" in section.commands for section in evidence):
        own = "attach"
    if all("plan" in section.commands for section in evidence):
        own = "plan"
    if command == "diagnose" and all(map(_of_files, evidence)):
        own = "diagnose"
    told = {
        way.check
        for check in checks
        for way in check.ways
        # Nobody misses what is left of another run, a script that was not given, or a whole run.
        if not any(
            need.section.commands[0] == "diagnose" or need.section in (Script, RunHistory)
            for need in way.needs.values()
            if not need.optional
        )
        if own is None
        or all(need.optional or need.section.commands[0] == own for need in way.needs.values())
    }
    # What this machine shows says nothing of the hosts that a launch names; a run of it does.
    seen = bool(evidence.all(TrainingRun)) or bool(evidence.all(LiveLook))
    read = _of_source(checks) if seen else set()
    explains, ends_runs = check_catalog.explains(checks), check_catalog.ends_runs(checks)
    fatal = {*ends_runs, *(one for one in explains if {*explains[one]} & {*FAILURES})}
    ordered = order(confirmed(results, read, fatal), explains, ends_runs)
    findings = proven(ordered, evidence.of(ControlArms, ""), evidence.of(Trials, ""))
    runs = evidence.all(ProbeRuns)
    serious = any(finding.severity > Severity.NOTE for finding in findings)
    crashed = (
        *(Crashed(check=r.check, error=r.crashed) for r in results if r.crashed is not None),
        *check_catalog.broken(),
        *_failed_collectors(evidence),
        *(
            Crashed(check=f"probe {run.probe}", error=f"{run.outcome}: {run.reason}")
            for section in runs
            for run in section.runs
            if run.outcome not in ("completed", "skipped")
        ),
        *(() if serious else _unjudged(evidence)),
    )
    if crashed:
        verdict = Verdict.INCOMPLETE
    elif serious:
        verdict = Verdict.FINDINGS
    else:
        verdict = Verdict.HEALTHY
    return Report(
        ddoctor=version("ddoctor"),
        command=command,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        verdict=verdict,
        world=World(
            # What a command printed on a host shows less than an examination of it.
            hosts=tuple(sorted({one.host for one in evidence if not one.printed} - {""})),
            ranks=max((section.world_size for section in runs), default=0),
            backend=next((section.backend for section in runs if section.backend), ""),
        ),
        findings=findings,
        skipped=tuple(
            Skipped(
                check=r.check,
                reason=r.skipped if command != "run" else _unseen(r.skipped, evidence),
            )
            for r in results
            if r.skipped is not None and r.check in told
        ),
        crashed=crashed,
        unexplained=() if serious else tuple(_unexplained(evidence, findings)),
    )


def _of_source(checks: Sequence[Check]) -> set[str]:
    """The ways that judge what is written, in a launch command or a script, before it runs."""
    return {
        way.check
        for check in checks
        for way in check.ways
        if any(need.section in (Launch, Script) for need in way.needs.values() if not need.optional)
    }


def _of_files(section: Section) -> bool:
    """Return whether `ddoctor diagnose` made it of files that are no bundles."""
    collected = "doctor" in section.commands and not section.printed
    return "diagnose" in section.commands and not collected


def _can(way: Way, evidence: Evidence) -> bool:
    """Return whether some host may have all that this way needs."""
    return all(evidence.all(need.section) for need in way.required)


def _run(
    way: Way,
    evidence: Evidence,
    derived: dict[tuple[object, ...], Derived],
    why_missing: Callable[[type[Section], str], str],
) -> Iterator[Result]:
    """Yield one result for all hosts with the same sections or the same reason to skip."""
    groups: dict[tuple[object, ...], tuple[dict[str, object], list[str]]] = {}
    skips: dict[str, list[str]] = {}

    needs = way.needs.values()
    shared = {one.section: evidence.all(one.section) for one in needs if one.every_host}

    def of(need: Need, host: str) -> object:
        return shared[need.section] if need.every_host else evidence.of(need.section, host)

    for host in ("",) if way.for_every_host else evidence.hosts or ("",):
        absent = (need.section for need in way.required if of(need, host) in (None, ()))
        missing = next(absent, None)
        if missing is not None:
            skips.setdefault(why_missing(missing, host), []).append(host)
        else:
            given = {name: of(need, host) for name, need in way.needs.items()}
            same = tuple(map(_identity, given.values()))
            groups.setdefault(same, (given, []))[1].append(host)
    for given, hosts in groups.values():
        yield _result(way, given, hosts, derived, evidence)
    for reason, hosts in skips.items():
        yield Result(check=way.check, skipped=reason + _which(hosts, evidence.hosts))


def _identity(given: object) -> object:
    """Return the same key for the same sections: those of all hosts are in new tuples each time."""
    return tuple(map(id, given)) if isinstance(given, tuple) else id(given)


def _arguments(
    function: Callable[..., Any],
    given: Mapping[str, object],
    derived: dict[tuple[object, ...], Derived],
) -> Mapping[str, object]:
    """Return the arguments by parameter; what is derived from sections is computed once."""
    arguments: dict[str, object] = {}
    for parameter, hint in check_catalog.asks(function).items():
        if not check_catalog.is_derived(hint):
            arguments[parameter] = given[parameter]
            continue
        start = f"{parameter}."
        own = {name[len(start) :]: one for name, one in given.items() if name.startswith(start)}
        key = (hint, *map(_identity, own.values()))
        if key not in derived:
            derived[key] = hint.derive(**_arguments(hint.derive, own, derived))
        arguments[parameter] = derived[key]
    return arguments


def _result(
    way: Way,
    given: Mapping[str, object],
    hosts: Sequence[str],
    derived: dict[tuple[object, ...], Derived],
    evidence: Evidence,
) -> Result:
    try:
        arguments = _arguments(way.function, given, derived)
        surest = _surest(given, evidence)
        findings = tuple(_completed(one, way, hosts, surest) for one in way.function(**arguments))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        return Result(check=way.check, crashed=f"{type(error).__name__}: {error} ({place})")
    return Result(check=way.check, findings=findings)


def _which(hosts: Sequence[str], every: Sequence[str]) -> str:
    """Return which of several hosts a reason holds for; empty if it holds for all."""
    if len(hosts) == len(every) or not any(hosts):
        return ""
    if len(hosts) <= FEW:
        return f" (on {', '.join(hosts)})"
    return f" (on {len(hosts)} of {len(every)} hosts)"


def _why_missing(evidence: Evidence, section: type[Section], host: str) -> str:
    hosts = (host,) if host else evidence.hosts
    ways = [evidence.why_absent(section, one) for one in hosts]
    ways += [
        f"{section.probe} {ENDINGS.get(run.outcome, run.outcome)}: {run.reason}"
        for one in hosts
        if (runs := evidence.of(ProbeRuns, one)) is not None
        for run in runs.runs
        if run.probe == section.probe and run.outcome != "completed"
    ]
    told = ", ".join(dict.fromkeys(way for way in ways if way))
    return f"no {section.label()} evidence: {told or f'get it with `{section.obtain()}`'}"


def _surest(given: Mapping[str, object], evidence: Evidence) -> Confidence:
    """Return how sure a finding can be.

    A stack of one moment may move on, and a few steps may be slow by chance. What a command printed
    at some time need not be why a run failed, unless the run's log shows it.
    """
    sections = [*_sections(given)]
    dumped = any(isinstance(one, LiveLook) and one.dumped for one in sections)
    beside = any(one.printed for one in sections) and not any(
        isinstance(one, Log | TrainingRun) for one in sections
    )
    if dumped or (beside and any(run.failures for run in evidence.all(TrainingRun))):
        return Confidence.POSSIBLE
    steps = (one for one in sections if isinstance(one, Steps))
    few = any(one.traced and one.count < FEWEST_STEPS for one in steps)
    return Confidence.LIKELY if few else Confidence.CERTAIN


def _sections(given: Mapping[str, object]) -> Iterator[Section]:
    for one in given.values():
        if isinstance(one, Section):
            yield one
        elif isinstance(one, tuple):
            yield from one


def _completed(finding: Finding, way: Way, hosts: Sequence[str], surest: Confidence) -> Finding:
    where = finding.where
    if not where.hosts and any(hosts):
        where = replace(where, hosts=tuple(hosts))
    return replace(
        finding,
        cause=way.cause,
        title=finding.title or way.title,
        where=where,
        confidence=min(finding.confidence, surest),
    )


def _unjudged(evidence: Evidence) -> Iterator[Crashed]:
    """Yield why a run could not be judged: without a finding, it must not be called healthy."""
    looks = evidence.all(LiveLook)
    if looks and (why := unjudged(LiveState.derive(looks))):
        said = " ".join(str(row.value) for row in by_nccl(evidence.all(FlightRecords)))
        yield Crashed(check=JUDGING, error=f"{why}; NCCL says: {said}" if said else why)
    for traces in evidence.all(Traces):
        if why := unexplained.in_traces(traces, evidence.of_run(Steps)):
            yield Crashed(check=JUDGING, error=why)
    for run in evidence.all(TrainingRun):
        steps = evidence.of(Steps, run.host)
        why = run.unjudged(steps.count if steps is not None else 0, FEWEST_STEPS)
        if why:
            yield Crashed(check=JUDGING, error=why)


def _unexplained(evidence: Evidence, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the large shares of the time that a healthy verdict must not hide."""
    for steps in evidence.all(Steps):
        yield from unexplained.in_steps(steps, evidence.of(Lines, steps.host), findings)
    if looks := evidence.all(LiveLook):
        yield from unexplained.in_a_live_run(LiveState.derive(looks), findings)
    for printed in evidence.all(PrintedPace):
        yield from unexplained.in_printed_pace(printed)


def _unseen(reason: str, evidence: Evidence) -> str:
    """Return a reason for `ddoctor run`, without the advice to use that same command."""
    if not evidence.all(Steps):
        return "no step could be judged"
    return f"{reason.partition(':')[0]}: this run produced none"


def _failed_collectors(evidence: Evidence) -> Iterator[Crashed]:
    for absent in evidence.all(Absent):
        for row in absent.sections:
            if row.crashed:
                yield Crashed(check=f"collect {row.section}", error=row.why)
