"""Finds the checks, gives each the evidence that it names, and makes a report of the findings."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from ddoctor import discovery, knowledge
from ddoctor.analysis.derived import Derived
from ddoctor.analysis.flight_records import by_nccl
from ddoctor.analysis.live_state import LiveState, unjudged
from ddoctor.control_arms import proven
from ddoctor.errors import DoctorError
from ddoctor.evidence.arms import ControlArms
from ddoctor.evidence.flight_records import FlightRecords
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.section import Absent, Evidence, Known, Section
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import TrainingRun, Trials
from ddoctor.models import (
    JUDGING,
    Command,
    Crashed,
    Finding,
    Report,
    Result,
    Severity,
    Skipped,
    Verdict,
    World,
)
from ddoctor.order import order

ENDINGS = {"skipped": "was skipped", "interrupted": "was interrupted"}
"""Words for how a probe ended; `hung` and `crashed` need no other words."""

FEWEST_STEPS = 10
"""A slowdown must persist over this many steps of a run to be reported (GREYHOUND, ATC'25)."""

FEW = 6
"""A reason counts more hosts than this instead of naming them."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """The evidence that one parameter of a check needs."""

    section: type[Section]
    every_host: bool = False
    """``tuple[Section, ...]``: the sections of all hosts at once."""
    optional: bool = False
    """``Section | None``: the check also runs without it."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """One public generator function of a check: one way to find its cause."""

    check: str
    """The reported name: the cause, with the function if there are several."""
    needs: Mapping[str, Need]
    """By parameter; what a derived parameter needs follows its name, as in ``live.looks``."""
    asks: Mapping[str, Any]
    """The types of its parameters."""
    run: Callable[..., Iterator[Finding]]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One cause: a module of ``checks/``."""

    name: str
    title: str
    explanation: str
    explains: tuple[str, ...]
    ways: tuple[Way, ...]
    explained_by: tuple[str, ...] = ()
    """Causes of this one whose checks do not name it in EXPLAINS."""
    of_machine: bool = False
    """Whether no setting fixes it: the host must be repaired, restarted or excluded."""
    package: str = ""
    """The installed package that provides it; empty: ddoctor."""


CHECKS = "ddoctor.checks"
"""The package of the checks, and the group of entry points for checks of other packages."""


def names() -> tuple[str, ...]:
    """Return the names of all causes without loading any check.

    Raises:
        DoctorError: ddoctor is not installed (a bare checkout).
    """
    return tuple(_cause(offer) for offer in discovery.usable(CHECKS))


def load(name: str) -> Check:
    """Load the check of one cause.

    Raises:
        KeyError: there is no such check.
    """
    # ddoctor's checks come first: searching the installed packages takes time.
    for offers in (discovery.own, discovery.offered):
        for offer in offers(CHECKS):
            if _cause(offer) == name and not offer.problem:
                return _read(offer)
    raise KeyError(name)


def read(module: ModuleType, name: str = "", package: str = "") -> Check:
    """Read a check from its module: the docstring and the public generator functions.

    Raises:
        TypeError: a parameter is no type of evidence.
    """
    name = name or module.__name__.rpartition(".")[2].replace("_", "-")
    explanation = inspect.getdoc(module) or ""
    functions = [
        function
        for function in vars(module).values()
        if inspect.isgeneratorfunction(function)
        and function.__module__ == module.__name__
        and not function.__name__.startswith("_")
    ]
    title = explanation.partition("\n")[0].rstrip(".")
    return Check(
        name=name,
        title=title,
        package=package,
        explanation=explanation,
        explains=tuple(getattr(module, "EXPLAINS", ())),
        explained_by=tuple(getattr(module, "EXPLAINED_BY", ())),
        of_machine=getattr(module, "OF_MACHINE", False),
        ways=tuple(
            Way(
                check=name
                if len(functions) == 1
                else f"{name} ({function.__name__.replace('_', ' ')})",
                needs=_needs(function),
                asks=_asks(function),
                run=_named(function, name, title),
            )
            for function in functions
        ),
    )


@cache
def discover() -> tuple[Check, ...]:
    """Load every check, except broken ones of other packages."""
    loaded = (_load_offered(offer) for offer in discovery.offered(CHECKS))
    own = map(_read, discovery.own(CHECKS))
    return (*own, *(check for check in loaded if isinstance(check, Check)))


def broken() -> tuple[Crashed, ...]:
    """Return the broken checks and probes of other packages, with the reason."""
    loaded = (_load_offered(offer) for offer in discovery.offered(CHECKS))
    return (
        *(check for check in loaded if isinstance(check, Crashed)),
        *(
            Crashed(check=f"probe {offer.name} ({offer.package})", error=offer.problem)
            for offer in discovery.offered("ddoctor.probes")
            if offer.problem
        ),
    )


def of_machine(cause: str) -> bool:
    """Whether no setting fixes a cause: its host must be repaired, restarted or excluded."""
    return any(check.name == cause and check.of_machine for check in discover())


def explains(checks: Sequence[Check]) -> Mapping[str, Collection[str]]:
    """Return the consequences of each cause, whichever of the two checks names them."""
    found = {check.name: set(check.explains) for check in checks}
    for check in checks:
        for cause in check.explained_by:
            found.setdefault(cause, set()).add(check.name)
    return found


def diagnose(evidence: Evidence, checks: Sequence[Check]) -> tuple[Result, ...]:
    """Run every way of every check that has its evidence; the others are skipped with a reason."""
    ways = tuple(way for check in checks for way in check.ways)
    tables = {need.section for way in ways for need in way.needs.values()}
    known = (knowledge.load(table) for table in tables if issubclass(table, Known))
    informed = evidence.with_sections(*known)
    derived: dict[tuple[object, ...], Derived] = {}
    return tuple(result for way in ways for result in _run(way, informed, derived))


def examine(evidence: Evidence, command: Command) -> Report:
    """Judge the evidence by all checks and return the report."""
    checks = discover()
    results = diagnose(evidence, checks)
    # A check that a recorded run or an attached one could never feed is not listed as skipped.
    own: Command | None = command if command == "run" else None
    if evidence.all(LiveLook) and all("attach" in section.commands for section in evidence):
        own = "attach"
    if all("plan" in section.commands for section in evidence):
        own = "plan"
    told = {
        way.check
        for check in checks
        for way in check.ways
        if own is None
        or all(need.optional or need.section.commands[0] == own for need in way.needs.values())
    }
    ordered = order(results, explains(checks))
    findings = proven(ordered, evidence.of(ControlArms, ""), evidence.of(Trials, ""))
    runs = evidence.all(ProbeRuns)
    serious = any(finding.severity > Severity.NOTE for finding in findings)
    crashed = (
        *(Crashed(check=r.check, error=r.crashed) for r in results if r.crashed is not None),
        *broken(),
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
            hosts=evidence.hosts,
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
    )


def _cause(offer: discovery.Offer) -> str:
    return offer.name.replace("_", "-")


def _read(offer: discovery.Offer) -> Check:
    return read(import_module(offer.module), _cause(offer), offer.package)


@cache
def _load_offered(offer: discovery.Offer) -> Check | Crashed:
    """Load a check of another package; an error in it affects no other check."""
    try:
        if offer.problem:
            raise DoctorError(offer.problem)
        check = _read(offer)
        if not check.title:
            raise DoctorError(f"{offer.module} has no docstring")
        if not check.ways:
            raise DoctorError(f"{offer.module} has no public generator function")
    except (Exception, SystemExit) as error:
        why = str(error) if isinstance(error, DoctorError) else f"{type(error).__name__}: {error}"
        return Crashed(check=f"{_cause(offer)} ({offer.package})", error=why)
    return check


def _named(
    function: Callable[..., Iterator[Finding]], name: str, title: str
) -> Callable[..., Iterator[Finding]]:
    def run(**sections: Any) -> Iterator[Finding]:
        for finding in function(**sections):
            yield replace(finding, cause=name, title=title)

    return run


def _asks(function: Callable[..., Any]) -> Mapping[str, Any]:
    hints = get_type_hints(function)
    return {name: hints.get(name) for name in inspect.signature(function).parameters}


def _needs(function: Callable[..., Any]) -> Mapping[str, Need]:
    """Return the sections that a function needs, those of its derived parameters included."""
    needs: dict[str, Need] = {}
    for parameter, hint in _asks(function).items():
        if _is_derived(hint):
            needs |= {f"{parameter}.{name}": need for name, need in _needs(hint.derive).items()}
        else:
            needs[parameter] = _need(hint, f"{function.__module__}.{function.__qualname__}")
    return needs


def _is_derived(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Derived)


def _need(hint: Any, who: str) -> Need:
    arguments = get_args(hint)
    if get_origin(hint) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return replace(_need(arguments[0], who), every_host=True)
    if get_origin(hint) in (UnionType, Union) and NoneType in arguments and len(arguments) == 2:
        (wanted,) = (argument for argument in arguments if argument is not NoneType)
        return replace(_need(wanted, who), optional=True)
    if isinstance(hint, type) and issubclass(hint, Section):
        return Need(section=hint)
    raise TypeError(f"{who}: {hint} is no type of evidence")


def _run(
    way: Way, evidence: Evidence, derived: dict[tuple[object, ...], Derived]
) -> Iterator[Result]:
    """Yield one result for all hosts with the same sections or the same reason to skip."""
    once = all(need.every_host or issubclass(need.section, Known) for need in way.needs.values())
    groups: dict[tuple[object, ...], tuple[dict[str, object], list[str]]] = {}
    skips: dict[str, list[str]] = {}
    for host in ("",) if once else evidence.hosts or ("",):
        given: dict[str, object] = {}
        missing: str | None = None
        for parameter, need in way.needs.items():
            if need.every_host:
                given[parameter] = evidence.all(need.section)
                found = bool(given[parameter])
            else:
                given[parameter] = evidence.of(need.section, host)
                found = given[parameter] is not None
            if not found and not need.optional:
                missing = _why_missing(need.section, evidence, host)
                break
        if missing is not None:
            skips.setdefault(missing, []).append(host)
        else:
            same = tuple(map(_identity, given.values()))
            groups.setdefault(same, (given, []))[1].append(host)
    for given, hosts in groups.values():
        yield _told(way, given, hosts, derived)
    for reason, hosts in skips.items():
        yield Result(check=way.check, skipped=reason + _which(hosts, evidence.hosts))


def _identity(given: object) -> object:
    """Return the same key for the same sections: those of all hosts are in new tuples each time."""
    return tuple(map(id, given)) if isinstance(given, tuple) else id(given)


def _arguments(
    asks: Mapping[str, Any],
    given: Mapping[str, object],
    derived: dict[tuple[object, ...], Derived],
) -> Mapping[str, object]:
    """Return the arguments by parameter; what is derived from sections is computed once."""
    arguments: dict[str, object] = {}
    for parameter, hint in asks.items():
        if not _is_derived(hint):
            arguments[parameter] = given[parameter]
            continue
        start = f"{parameter}."
        own = {name[len(start) :]: one for name, one in given.items() if name.startswith(start)}
        key = (hint, *map(_identity, own.values()))
        if key not in derived:
            derived[key] = hint.derive(**_arguments(_asks(hint.derive), own, derived))
        arguments[parameter] = derived[key]
    return arguments


def _told(
    way: Way,
    given: Mapping[str, object],
    hosts: Sequence[str],
    derived: dict[tuple[object, ...], Derived],
) -> Result:
    try:
        arguments = _arguments(way.asks, given, derived)
        findings = tuple(_placed(finding, hosts) for finding in way.run(**arguments))
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


def _why_missing(section: type[Section], evidence: Evidence, host: str) -> str:
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


def _placed(finding: Finding, hosts: Sequence[str]) -> Finding:
    if finding.where.hosts or not any(hosts):
        return finding
    return replace(finding, where=replace(finding.where, hosts=tuple(hosts)))


def _unjudged(evidence: Evidence) -> Iterator[Crashed]:
    """Yield why a run could not be judged: without a finding, it must not be called healthy."""
    looks = evidence.all(LiveLook)
    if looks and (why := unjudged(LiveState.derive(looks))):
        said = " ".join(str(row.value) for row in by_nccl(evidence.all(FlightRecords)))
        yield Crashed(check=JUDGING, error=f"{why}; NCCL says: {said}" if said else why)
    for run in evidence.all(TrainingRun):
        steps = evidence.of(Steps, run.host)
        why = run.unjudged(steps.count if steps is not None else 0, FEWEST_STEPS)
        if why:
            yield Crashed(check=JUDGING, error=why)


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
