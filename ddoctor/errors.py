"""The one exception that is meant for people."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches


class DoctorError(Exception):
    """What ddoctor cannot examine, and what to do about it; the command line prints it in one line.

    Raised anywhere, caught once in ``ddoctor.__main__``, which prints the message and exits 2.
    """


def unknown(
    kind: str,
    name: str,
    known: Collection[str],
    otherwise: str = "`ddoctor list` shows what there is",
) -> DoctorError:
    """The error for a name that is none of the known ones, with the nearest of them, or with what
    to do ``otherwise``."""
    near = get_close_matches(name, known, n=1)
    if near:
        return DoctorError(f"there is no {kind} '{name}'; did you mean '{near[0]}'?")
    return DoctorError(f"there is no {kind} '{name}'; {otherwise}")
