"""The checks: which there are, and the evidence that each of their ways needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from types import ModuleType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from ddoctor import discovery, knowledge
from ddoctor.analysis import log_messages
from ddoctor.analysis.derived import Derived
from ddoctor.errors import DoctorError
from ddoctor.evidence.log import Messages
from ddoctor.evidence.section import Known, Section
from ddoctor.models import Crashed, Finding

CHECKS = "ddoctor.checks"
"""The package of the checks, and the group of entry points for checks of other packages."""


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
    cause: str
    title: str
    function: Callable[..., Iterator[Finding]]
    needs: Mapping[str, Need]
    """By parameter; what a derived parameter needs follows its name, as in ``live.looks``."""

    @cached_property
    def required(self) -> Sequence[Need]:
        """What it cannot run without, but for tables that ship with ddoctor."""
        needs = self.needs.values()
        return [one for one in needs if not (one.optional or issubclass(one.section, Known))]

    @cached_property
    def for_every_host(self) -> bool:
        """Whether one answer holds for all hosts."""
        return all(one.every_host or issubclass(one.section, Known) for one in self.needs.values())


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
    ends_runs: bool = False
    """Whether a message of an error tells it: then its errors explain how the run ended."""
    of_machine: bool = False
    """Whether no setting fixes it: the host must be repaired, restarted or excluded."""
    package: str = ""
    """The installed package that provides it; empty: ddoctor."""


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
    for offer in discovery.usable(CHECKS):
        if _cause(offer) == name:
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
    named = [
        (f" ({function.__name__.replace('_', ' ')})" if len(functions) > 1 else "", function)
        for function in functions
    ]
    messages = knowledge.load(Messages).of(name)
    if messages:
        named.append((" (message)", log_messages.of_cause(name)))
    return Check(
        name=name,
        title=title,
        package=package,
        explanation=explanation,
        explains=tuple(getattr(module, "EXPLAINS", ())),
        ends_runs=any(one.severity == "error" for one in messages),
        explained_by=tuple(getattr(module, "EXPLAINED_BY", ())),
        of_machine=getattr(module, "OF_MACHINE", False),
        ways=tuple(
            Way(
                check=name + way, cause=name, title=title, function=function, needs=_needs(function)
            )
            for way, function in named
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


def ends_runs(checks: Sequence[Check]) -> Collection[str]:
    """Return the causes whose errors explain how a run ended."""
    return {check.name for check in checks if check.ends_runs}


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


@cache
def asks(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the types of a function's parameters."""
    parameters = inspect.signature(function, eval_str=True).parameters
    return {name: parameter.annotation for name, parameter in parameters.items()}


def _needs(function: Callable[..., Any]) -> Mapping[str, Need]:
    """Return the sections that a function needs, those of its derived parameters included."""
    needs: dict[str, Need] = {}
    for parameter, hint in asks(function).items():
        if is_derived(hint):
            needs |= {f"{parameter}.{name}": need for name, need in _needs(hint.derive).items()}
        else:
            needs[parameter] = _need(
                hint, f"parameter {parameter} of {function.__module__}.{function.__qualname__}"
            )
    return needs


def is_derived(hint: Any) -> bool:
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
    raise TypeError(
        f"{who}: {hint} is no type of evidence; ask for a section of docs/evidence.md, or for a "
        "subclass of Derived"
    )
