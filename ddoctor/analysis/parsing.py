"""Numbers in texts of others: of a variable, a version or a message."""

from __future__ import annotations

from packaging.version import Version

MOST_DIGITS = 18
"""A number of 18 digits fits into 64 bits; Python refuses to read thousands of digits."""


def whole(text: str) -> int | None:
    """The whole number, at least 0, that a text is; None: it is none."""
    short = len(text) <= MOST_DIGITS and text.isascii()
    return int(text) if short and text.isdigit() else None


def major(version: str) -> int | None:
    """The first number of a version such as ``12.8``; None: it has none."""
    return whole(version.partition(".")[0])


def is_older(version: str, other: str) -> bool:
    """Whether a version is below another; False if one of them is no version."""
    try:
        return Version(version) < Version(other)
    except ValueError:
        # InvalidVersion, or a number of thousands of digits, which Python refuses to read.
        return False
