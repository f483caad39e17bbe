"""Sections, and Evidence: a collection of sections, at most one per type and host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sized
from functools import cached_property
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from ddoctor.evidence.redaction import redact
from ddoctor.models import Command

Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""A number of ranks, hosts or processes. Such numbers are counted through, so they have a limit."""


def of_one_length(**lists: Sized) -> None:
    """Check lists that have an entry each for the same things; an empty one was not seen.

    Raises:
        ValueError: their lengths differ.
    """
    lengths = {name: len(rows) for name, rows in lists.items() if rows}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ValueError(f"lists of one length differ: {told} entries")


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a section. ``None`` in a field means "not seen", never zero."""

    signed: ClassVar[frozenset[str]] = frozenset()
    """The fields with numbers that may be below 0; no other may."""


class Unseen(Part, frozen=True, kw_only=True):
    """A quantity that a collector could not read, and the reason."""

    what: str
    why: str


class Section(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=_kebab):
    """One kind of evidence about one host; an empty host means all hosts.

    Its JSON tag is the class name in kebab-case. New fields need a default, so that older bundles
    stay readable.
    """

    probe: ClassVar[str] = ""
    """The probe that measures it; empty: a collector reads it."""
    commands: ClassVar[tuple[Command, ...]] = ("doctor", "probe")
    """The commands that make it; the report advises to run the first."""

    obtained_by: ClassVar[str] = ""
    """The command line that makes it, where ``commands`` and ``probe`` do not say enough."""

    host: str = ""
    unseen: tuple[Unseen, ...] = ()
    printed: bool = False
    """Whether it was read from what a command printed, which says less than a collector sees."""

    @classmethod
    def label(cls) -> str:
        """The section's name in reports and bundles, say ``shared-memory``."""
        return _kebab(cls.__name__)

    @classmethod
    def obtain(cls) -> str:
        """The command that makes it."""
        first = cls.commands[0]
        if cls.obtained_by:
            return cls.obtained_by
        if first == "run":
            return "torchrun … -m ddoctor.probe run SCRIPT"
        if first == "probe":
            return f"torchrun … -m ddoctor.probe {cls.probe}".rstrip()
        return f"ddoctor doctor --probe {cls.probe}" if cls.probe else f"ddoctor {first}"


class RunSection(Section, frozen=True, kw_only=True):
    """A section that only a recorded run makes."""

    commands = ("run",)


class ProbeSection(Section, frozen=True, kw_only=True):
    """A section that only ``ddoctor probe`` makes, on several hosts or ranks."""

    commands = ("probe",)


class AttachSection(Section, frozen=True, kw_only=True):
    """A section that only ``ddoctor attach`` makes."""

    commands: ClassVar[tuple[Command, ...]] = ("attach",)


class Absence(Part, frozen=True, kw_only=True):
    """A section that a collector could not make on a host, and the reason."""

    section: str
    why: str
    crashed: bool = False
    """Whether the collector itself failed."""


class Absent(Section, frozen=True, kw_only=True):
    """All missing sections of a host, which explain why a check was skipped."""

    commands = ("doctor", "probe", "run")

    sections: tuple[Absence, ...] = ()


SectionType = TypeVar("SectionType", bound=Section)


class Evidence:
    """Sections by type and host, without secrets. Immutable: ``with_sections`` makes a new one."""

    def __init__(self, sections: Iterable[Section] = ()) -> None:
        self._sections: dict[type[Section], dict[str, Section]] = {}
        self._add(sections)

    def __iter__(self) -> Iterator[Section]:
        return (section for by_host in self._sections.values() for section in by_host.values())

    def __len__(self) -> int:
        return sum(map(len, self._sections.values()))

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Every host that has a section, sorted."""
        return tuple(sorted(set().union(*self._sections.values()) - {""}))

    def all(self, wanted: type[SectionType]) -> tuple[SectionType, ...]:
        """The sections of one type, sorted by host."""
        found: Any = sorted(self._sections.get(wanted, {}).items())
        return tuple(section for _, section in found)

    def of(self, wanted: type[SectionType], host: str) -> SectionType | None:
        """The section of a type for this host, or else the section that spans all hosts."""
        by_host: Any = self._sections.get(wanted, {})
        found: SectionType | None = by_host.get(host) or by_host.get("")
        return found

    def of_run(self, wanted: type[SectionType]) -> SectionType | None:
        """The section of a type of which a recorded run has one, whether it names a host or not."""
        return next(iter(self.all(wanted)), None)

    def why_absent(self, wanted: type[Section], host: str) -> str | None:
        """The collector's reason for a missing section; None: it gave none."""
        absent = self.of(Absent, host)
        rows = absent.sections if absent else ()
        return next((row.why for row in rows if row.section == wanted.label()), None)

    def with_sections(self, *sections: Section) -> Evidence:
        """This evidence with these sections added, each replacing one of equal type and host."""
        more = Evidence()
        more._sections = {kind: dict(by_host) for kind, by_host in self._sections.items()}
        more._add(sections)
        return more

    def _add(self, sections: Iterable[Section]) -> None:
        for section in sections:
            # All that ddoctor writes or shows comes from here, but for tables that ship with it.
            told = section if isinstance(section, Known) else redact(section)
            self._sections.setdefault(type(section), {})[told.host] = told


class Known(Section, frozen=True, kw_only=True):
    """A table of facts that ships with ddoctor; checks request it like evidence.

    It is a file in ``ddoctor/knowledge/`` and never part of a bundle. So current knowledge also
    judges old bundles.
    """

    table: ClassVar[str]
