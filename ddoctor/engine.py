"""Find the checks, give each the evidence that it names, and make the report of their findings."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from ddoctor import knowledge
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
"""How it is said that a probe ended; one that hung or crashed did so itself."""

FEWEST_STEPS = 10
"""Of a training run; a slowdown has to persist over so many to be told (GREYHOUND, ATC'25)."""

FEW = 6
"""More hosts than this are not named in a reason, only counted."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What one parameter of a check asks for."""

    section: type[Section]
    every_host: bool = False
    """``tuple[Section, ...]``: the sections of all hosts at once."""
    optional: bool = False
    """``Section | None``: the check can do without."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """One public generator function of a check: one way to tell its cause."""

    check: str
    """The name it is reported by: the cause, and the function where there are several."""
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


def names(package: str = "ddoctor.checks") -> tuple[str, ...]:
    """The causes that can be told, without loading any check.

    Raises:
        DoctorError: the package is not installed (a bare checkout).
    """
    return tuple(module.replace("_", "-") for module in sorted(_modules(package)))


def load(name: str) -> Check:
    """Load the check of one cause, which must be one of ``names()``."""
    return read(import_module(f"ddoctor.checks.{name.replace('-', '_')}"))


def read(module: ModuleType) -> Check:
    """The check that a module holds: its docstring and its public generator functions."""
    name = module.__name__.rpartition(".")[2].replace("_", "-")
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
        explanation=explanation,
        explains=tuple(getattr(module, "EXPLAINS", ())),
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


def discover() -> tuple[Check, ...]:
    """Load every check."""
    return tuple(load(name) for name in names())


def diagnose(evidence: Evidence, checks: Iterable[Check]) -> tuple[Result, ...]:
    """Run every way of every check that has its evidence; say why for the others."""
    ways = tuple(way for check in checks for way in check.ways)
    tables = {need.section for way in ways for need in way.needs.values()}
    known = (knowledge.load(table) for table in tables if issubclass(table, Known))
    informed = evidence.with_sections(*known)
    derived: dict[tuple[object, ...], Derived] = {}
    return tuple(result for way in ways for result in _run(way, informed, derived))


def examine(evidence: Evidence, command: Command) -> Report:
    """Judge the evidence by every check there is."""
    checks = discover()
    results = diagnose(evidence, checks)
    # What a recorded run, or a look from outside, could not tell anyway is no loss to it.
    own = command if command == "run" else None
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
    ordered = order(results, {check.name: check.explains for check in checks})
    findings = proven(ordered, evidence.of(ControlArms, ""), evidence.of(Trials, ""))
    runs = evidence.all(ProbeRuns)
    serious = any(finding.severity > Severity.NOTE for finding in findings)
    crashed = (
        *(Crashed(check=r.check, error=r.crashed) for r in results if r.crashed is not None),
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


def _modules(package: str) -> Sequence[str]:
    try:
        path = import_module(package).__path__
    except ModuleNotFoundError as error:
        raise DoctorError(
            f"{package} is missing: ddoctor is not installed; run `pip install -e .` in its folder"
        ) from error
    return [module.name for module in iter_modules(path)]


def _named(
    function: Callable[..., Iterator[Finding]], name: str, title: str
) -> Callable[..., Iterator[Finding]]:
    def run(**sections: Any) -> Iterator[Finding]:
        for finding in function(**sections):
            yield replace(finding, cause=name, title=title)

    return run


def _asks(function: Callable[..., Any]) -> Mapping[str, Any]:
    hints = get_type_hints(function)
    return {parameter: hints[parameter] for parameter in inspect.signature(function).parameters}


def _needs(function: Callable[..., Any]) -> Mapping[str, Need]:
    """The sections that a function needs, those that its derived parameters need included."""
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
    raise TypeError(f"{who}: {hint} is no kind of evidence")


def _run(
    way: Way, evidence: Evidence, derived: dict[tuple[object, ...], Derived]
) -> Iterator[Result]:
    """One result for all hosts with the same sections, one for all with the same reason to skip."""
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
    """The same for the same sections: those of all hosts come in a new tuple each time."""
    return tuple(map(id, given)) if isinstance(given, tuple) else id(given)


def _arguments(
    asks: Mapping[str, Any],
    given: Mapping[str, object],
    derived: dict[tuple[object, ...], Derived],
) -> Mapping[str, object]:
    """The sections as the parameters take them, with what is derived from them: made once."""
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
    """Which of several hosts a reason holds for; nothing where it holds for all."""
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
    """Why a training tells nothing, where no finding does: it is not to be called healthy."""
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
    """The command that gets the evidence is the one that was given."""
    if not evidence.all(Steps):
        return "no step could be judged"
    return f"{reason.partition(':')[0]}: this run had nothing of the kind"


def _failed_collectors(evidence: Evidence) -> Iterator[Crashed]:
    for absent in evidence.all(Absent):
        for row in absent.sections:
            if row.crashed:
                yield Crashed(check=f"collect {row.section}", error=row.why)
