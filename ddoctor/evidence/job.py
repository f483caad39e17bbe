"""The run itself: what it was started with, and the code that it runs."""

from __future__ import annotations

from ddoctor.evidence.section import Section


class Job(Section, frozen=True, kw_only=True):
    """The arguments of a launched program and the commit of its working folder."""

    arguments: tuple[str, ...] | None = None
    """As given, values that might be secrets hidden; None: nothing was launched."""
    commit: str | None = None
    """What git has checked out in the working folder, or above it; None: no repository."""
