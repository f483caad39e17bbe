"""Collectors: they look and never touch, need no root, and say what they could not see.

A collector is a function without arguments (or with defaults only) that returns one section. Each
module of this package that has any lists them in ``COLLECTORS``. A collector that cannot make its
section raises `CannotSee` with the reason; a field that it cannot fill stays None and is named in
the section's ``unseen``.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pkgutil import iter_modules
from threading import Thread
from typing import get_type_hints

import msgspec

from ddoctor.collect import programs
from ddoctor.evidence.section import Absence, Absent, Section

Collector = Callable[[], Section]

LIMIT_SECONDS = 30.0
"""For all together: a dead network file system or a hung driver must not hold up the rest."""


class CannotSee(Exception):
    """A section cannot be made on this machine; the message says why."""


def collectors() -> Iterator[Collector]:
    """Every collector there is."""
    for module in iter_modules(__path__):
        yield from getattr(import_module(f"{__name__}.{module.name}"), "COLLECTORS", ())


def collect(
    waiting_for: Callable[[str], None],
    chosen: Iterable[Collector] | None = None,
    *,
    limit: float = LIMIT_SECONDS,
) -> Iterator[Section | Absence]:
    """Run all collectors, or those chosen, side by side; ``waiting_for`` hears of each in turn."""
    host = socket.gethostname()
    deadline = time.monotonic() + limit
    every = collectors() if chosen is None else chosen
    tasks = [_Task(collector, limit) for collector in every]
    try:
        for task in tasks:
            task.begin()
        for task in tasks:
            waiting_for(task.label)
            if task.is_alive():
                task.join(max(0.0, deadline - time.monotonic()))
            outcome = task.outcome
            if isinstance(outcome, Section):
                outcome = msgspec.structs.replace(outcome, host=host)
            yield outcome
    finally:
        programs.end(tasks)


def with_absent(outcomes: Iterable[Section | Absence], host: str = "") -> list[Section]:
    """The sections, and last one that lists all absences."""
    outcomes = list(outcomes)
    absences = tuple(one for one in outcomes if isinstance(one, Absence))
    sections = [one for one in outcomes if isinstance(one, Section)]
    return [*sections, Absent(host=host, sections=absences)]


class _Task(Thread):
    """One collector at work; a daemon, for one that hangs cannot be ended."""

    def __init__(self, collector: Collector, limit: float) -> None:
        self._collector = collector
        section: type[Section] = get_type_hints(collector)["return"]
        self.label = section.label()
        self.outcome: Section | Absence = self._absence(
            f"no answer within {limit:.0f} s (a dead network file system, a hung driver?)",
            crashed=True,
        )
        super().__init__(name=f"collect {self.label}", daemon=True)

    def begin(self) -> None:
        """Run it next to the others."""
        try:
            self.start()
        except RuntimeError:  # the user may start no more threads
            self.run()

    def run(self) -> None:
        try:
            self.outcome = _readable(self._collector())
        except CannotSee as reason:
            self.outcome = self._absence(str(reason), crashed=False)
        except Exception as error:
            self.outcome = self._absence(f"{type(error).__name__}: {error}", crashed=True)

    def _absence(self, why: str, *, crashed: bool) -> Absence:
        return Absence(section=self.label, why=why, crashed=crashed)


def _readable(section: Section) -> Section:
    """With text that is not UTF-8 (a file name, a variable) replaced: JSON cannot carry it."""
    try:
        msgspec.json.encode(section)
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(section), ensure_ascii=False)
        readable = text.encode(errors="surrogateescape").decode(errors="replace")
        return msgspec.json.decode(readable, type=type(section))
    return section
