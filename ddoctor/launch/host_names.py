"""The names of the hosts on which a launcher starts ranks, those of rank 0 first."""

from __future__ import annotations

from collections.abc import Iterable

from ddoctor.evidence.launch import Setting

NAME = "host-names"


def named(hosts: Iterable[str], at: Setting) -> Setting:
    """The setting that names them; ``at``: where they are written."""
    value = ",".join(dict.fromkeys(hosts))
    return Setting(name=NAME, value=value, file=at.file, line=at.line, origin=at.origin)
