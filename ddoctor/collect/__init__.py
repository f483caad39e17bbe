"""Collectors: they look and never touch, need no root, and say what they could not see.

A collector is a function without arguments (or with defaults only) that returns one section. Each
module of this package lists its own in ``COLLECTORS``. A collector that cannot make its section
raises `CannotSee` with the reason; a field that it cannot fill stays None and is named in the
section's ``unseen``.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import signature
from pkgutil import iter_modules
from threading import Thread
from typing import get_type_hints

import msgspec

from ddoctor.evidence.section import Absence, Section

Collector = Callable[[], Section]

LIMIT_SECONDS = 15.0
"""A dead network file system or a hung driver must not hold up the rest. A collector that bounds
its own work by a parameter ``limit`` gets its default in addition."""


class CannotSee(Exception):
    """A section cannot be made on this machine; the message says why."""


def collectors() -> Iterator[Collector]:
    """Every collector there is."""
    for module in iter_modules(__path__):
        yield from import_module(f"{__name__}.{module.name}").COLLECTORS


def collect(started: Callable[[str], None]) -> Iterator[Section | Absence]:
    """Run every collector, each within its limit; ``started`` hears which one is at work."""
    host = socket.gethostname()
    for collector in collectors():
        section_type: type[Section] = get_type_hints(collector)["return"]
        started(section_type.label())
        outcome = _bounded(collector, section_type)
        if isinstance(outcome, Section):
            outcome = msgspec.structs.replace(outcome, host=host)
        yield outcome


def _bounded(collector: Collector, section_type: type[Section]) -> Section | Absence:
    label = section_type.label()
    outcome: list[Section | Absence] = []

    def run() -> None:
        try:
            outcome.append(collector())
        except CannotSee as reason:
            outcome.append(Absence(section=label, why=str(reason)))
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            outcome.append(Absence(section=label, why=why, crashed=True))

    thread = Thread(target=run, name=f"collect {label}", daemon=True)
    thread.start()
    own = signature(collector).parameters.get("limit")
    limit = LIMIT_SECONDS + (own.default if own is not None else 0.0)
    thread.join(limit)
    if outcome:
        return outcome[0]
    why = f"no answer within {limit:.0f} s (a dead network file system, a hung driver?)"
    return Absence(section=label, why=why, crashed=True)
