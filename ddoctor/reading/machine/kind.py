"""How the output of a command is recognised in a text, and what reads it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ddoctor.evidence.section import Section

# What the tools print where they know nothing.
UNKNOWN = re.compile(r"\[?(?:N/?A|not supported|unknown error|requested functionality.*)?\]?", re.I)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One command, or several that print the same."""

    name: str
    """The command, as reports show it."""
    holds: tuple[str, ...] = ()
    """Texts in lower case, of which each beginning contains one: a fast test beforehand. Without
    one, it is only recognised at the beginning of a file, or after its command at a prompt."""
    begins: re.Pattern[str]
    """The first line."""
    goes_on: re.Pattern[str]
    """Each further line; blank ones may be between them."""
    read: Callable[[Sequence[str]], Iterator[Section]]
    """Makes the sections of its lines; raises ValueError if they are damaged."""
    command: re.Pattern[str] | None = None
    """The command at a prompt, where the output itself is too like other text."""
    fewest: int = 1
    """Lines that make it one, unless its command stands before it."""
    scattered: bool = False
    """Whether its lines may stand anywhere in a file; all of them together are one output."""


def number(text: str) -> int | None:
    """The whole number that a text begins with, such as ``81559 MiB``; None: none."""
    found = re.match(r"\d{1,18}(?![\d.])", text.strip())
    return int(found[0]) if found else None


def decimal(text: str) -> float | None:
    """The number that a text begins with, such as ``71.03 W``; None: none."""
    found = re.match(r"\d{1,15}(?:\.\d{1,9})?", text.strip())
    return float(found[0]) if found else None


def mebibytes(text: str) -> int | None:
    """The bytes of a text such as ``81559 MiB``; None: it is none."""
    found = number(text)
    return None if found is None else found * 2**20


def flag(text: str) -> bool | None:
    """Whether a text says yes; None: it says neither."""
    word = text.strip().lower()
    if word in ("yes", "enabled", "active", "on"):
        return True
    return False if word in ("no", "disabled", "not active", "off") else None


def known(text: str) -> str:
    """The text; empty where the tool says that it does not know."""
    told = text.strip()
    return "" if UNKNOWN.fullmatch(told) else told


UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}
SIZE = re.compile(r"(\d{1,18}(?:[.,]\d{1,3})?)([BKMGTPE]?)i?B?")


def size(text: str, unit: int = 1) -> int | None:
    """The bytes of a size such as ``1.8T`` or ``64M``; a bare number counts ``unit``."""
    found = SIZE.fullmatch(text)
    if found is None:
        return None
    amount = float(found[1].replace(",", "."))
    return int(amount * (UNITS[found[2]] if found[2] else unit))


def bus_id(told: str) -> str:
    """A bus id in the kernel's form: NVIDIA's tools give the domain eight digits, and capitals."""
    return told.strip().lower()[-len("0000:1b:00.0") :]
