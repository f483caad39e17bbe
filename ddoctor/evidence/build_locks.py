"""Locks that torch takes while it builds an extension, and that outlive who took them."""

from __future__ import annotations

from typing import ClassVar

from ddoctor.evidence.section import Part, Section


class BuildLock(Part, frozen=True, kw_only=True):
    """One such file: whoever finds it there waits until it is gone."""

    path: str
    age_seconds: float
    holder: int | None = None
    """The process of this host that has it open, as a build has; None: none that can be seen."""


class BuildLocks(Section, frozen=True, kw_only=True):
    """All that lie where the ranks of this host keep their extensions."""

    of_attaching: ClassVar[bool] = True

    locks: tuple[BuildLock, ...] = ()
