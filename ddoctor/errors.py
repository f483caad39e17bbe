"""The one exception that is meant for people."""

from __future__ import annotations


class DoctorError(Exception):
    """What ddoctor cannot examine, and what to do about it; the command line prints it in one line.

    Raised anywhere, caught once in ``ddoctor.__main__``, which prints the message and exits 2.
    """
