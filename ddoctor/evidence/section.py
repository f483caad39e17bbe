"""Sections, and Evidence: a collection of them, at most one per type and host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import msgspec


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a section. ``None`` in a field means "could not be seen", never zero."""


class Unseen(Part, frozen=True, kw_only=True):
    """Something a collector looked for and could not read, and why."""

    what: str
    why: str


class Section(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=_kebab):
    """One kind of evidence about one host; an empty host means it spans all of them.

    In JSON a section is tagged by its class name in kebab-case. New fields need a default, so that
    older bundles can still be read.
    """

    probe: ClassVar[str] = ""
    """The probe that measures it; empty: a collector sees it."""
    between_hosts: ClassVar[bool] = False
    """Only the probe of a whole cluster makes it."""
    of_training: ClassVar[bool] = False
    """Recorded while a training script ran."""
    of_attaching: ClassVar[bool] = False
    """Seen from outside of a run that nobody had prepared."""
    of_planning: ClassVar[bool] = False
    """Forecast for a run that does not exist yet."""

    host: str = ""
    unseen: tuple[Unseen, ...] = ()

    @classmethod
    def label(cls) -> str:
        """The section's name as people and bundles write it, say ``shared-memory``."""
        return _kebab(cls.__name__)

    @classmethod
    def obtain(cls) -> str:
        """The command that makes it."""
        if cls.of_training:
            return "torchrun … -m ddoctor.probe run SCRIPT"
        if cls.of_attaching:
            return "ddoctor attach"
        if cls.of_planning:
            return "ddoctor plan"
        if cls.between_hosts:
            return f"torchrun … -m ddoctor.probe {cls.probe}".rstrip()
        return f"ddoctor doctor --probe {cls.probe}" if cls.probe else "ddoctor doctor"


class Absence(Part, frozen=True, kw_only=True):
    """A whole section that a collector could not make on a host, and why."""

    section: str
    why: str
    crashed: bool = False
    """The collector failed by its own fault."""


class Absent(Section, frozen=True, kw_only=True):
    """All absences of a host, so that a skipped check can say why its evidence is missing."""

    sections: tuple[Absence, ...] = ()


SectionType = TypeVar("SectionType", bound=Section)


class Evidence:
    """Sections by type and host. Immutable: ``with_sections`` makes a new one."""

    def __init__(self, sections: Iterable[Section] = ()) -> None:
        self._sections: dict[type[Section], dict[str, Section]] = {}
        for section in sections:
            self._sections.setdefault(type(section), {})[section.host] = section

    def __iter__(self) -> Iterator[Section]:
        return (section for by_host in self._sections.values() for section in by_host.values())

    def __len__(self) -> int:
        return sum(map(len, self._sections.values()))

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Every host that a section speaks about, sorted."""
        return tuple(sorted(set().union(*self._sections.values()) - {""}))

    def all(self, wanted: type[SectionType]) -> tuple[SectionType, ...]:
        """The sections of one type, in the order of their hosts."""
        found: Any = sorted(self._sections.get(wanted, {}).items())
        return tuple(section for _, section in found)

    def of(self, wanted: type[SectionType], host: str) -> SectionType | None:
        """The section of a type for this host, or else the one that spans all hosts."""
        by_host: Any = self._sections.get(wanted, {})
        found: SectionType | None = by_host.get(host) or by_host.get("")
        return found

    def why_absent(self, wanted: type[Section], host: str) -> str | None:
        """What the collector said about a section that it could not make."""
        absent = self.of(Absent, host)
        rows = absent.sections if absent else ()
        return next((row.why for row in rows if row.section == wanted.label()), None)

    def with_sections(self, *sections: Section) -> Evidence:
        """This evidence with these sections added, each in place of an equal type and host."""
        return Evidence((*self, *sections))


class Known(Section, frozen=True, kw_only=True):
    """A table of facts that ships with ddoctor; a check may ask for it like for evidence.

    It lies in ``ddoctor/knowledge/<table>``, is never written to a bundle, and so an old bundle is
    judged by what is known today.
    """

    table: ClassVar[str]
