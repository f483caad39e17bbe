"""The run itself: its arguments and the commit of its code."""

from __future__ import annotations

from ddoctor.evidence.section import Section


class Job(Section, frozen=True, kw_only=True):
    """The arguments of a launched program and the commit of its working folder."""

    arguments: tuple[str, ...] | None = None
    """Arguments with possible secrets hidden; None: no program was launched."""
    commit: str | None = None
    """Commit checked out in the working folder or a parent; None: no repository."""
