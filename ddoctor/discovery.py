"""Find checks and probes: the modules of ddoctor, then those that installed packages offer.

A package offers a module by an entry point of the group ``ddoctor.checks`` or ``ddoctor.probes``.
Nothing is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules

from ddoctor.errors import DoctorError


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A module that holds a check or a probe."""

    name: str
    """With underscores, like a module."""
    module: str
    package: str = ""
    """The installed package that offers it; empty: ddoctor."""
    problem: str = ""
    """Why its name cannot be used; empty: it can."""


@cache
def own(group: str) -> tuple[Offer, ...]:
    """The modules of ddoctor, sorted by name; a group has the name of their package.

    Raises:
        DoctorError: the package is not installed (a bare checkout).
    """
    try:
        path = import_module(group).__path__
    except ModuleNotFoundError as error:
        raise DoctorError(
            f"{group} is missing: ddoctor is not installed; run `pip install -e .` in its folder"
        ) from error
    names = sorted(module.name for module in iter_modules(path))
    return tuple(Offer(name=name, module=f"{group}.{name}") for name in names)


@cache
def offered(group: str) -> tuple[Offer, ...]:
    """The modules that installed packages offer, sorted by name."""
    # A folder that is twice on the path lists its packages twice.
    points = {
        (one.name, one.value, one.dist.name if one.dist else "")
        for one in entry_points(group=group)
    }
    taken = {one.name: "ddoctor" for one in own(group)}
    offers = []
    for name, module, package in sorted(points):
        one = Offer(name=name.replace("-", "_"), module=module, package=package)
        if owner := taken.get(one.name):
            one = replace(one, problem=f"{owner} already offers this name")
        taken.setdefault(one.name, package)
        offers.append(one)
    return tuple(offers)


def usable(group: str) -> Iterator[Offer]:
    """All modules whose names can be used, those of ddoctor first.

    It searches the installed packages only for those that follow: that takes time.
    """
    yield from own(group)
    yield from (one for one in offered(group) if not one.problem)


def offer(group: str, name: str) -> Offer:
    """The module of a name; a name that no package offers is itself a module."""
    return next((one for one in usable(group) if one.name == name), Offer(name=name, module=name))
