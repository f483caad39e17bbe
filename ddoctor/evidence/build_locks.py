"""Lock files of torch's extension builds that outlive the process that took them."""

from __future__ import annotations

from typing import ClassVar

from ddoctor.evidence.section import Part, Section
from ddoctor.models import Command


class BuildLock(Part, frozen=True, kw_only=True):
    """One lock file: every process that needs the extension waits until the file is gone."""

    path: str
    age_seconds: float
    holder: int | None = None
    """Process id on this host that has the file open, as a running build has; None: none is
    visible."""


class BuildLocks(Section, frozen=True, kw_only=True):
    """All lock files in the extension folders of the ranks on this host."""

    commands: ClassVar[tuple[Command, ...]] = ("attach",)

    locks: tuple[BuildLock, ...] = ()
