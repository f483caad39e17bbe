"""What a bundle can hold: more, or a figure that cannot be, is damage or an attack.

Bytes and numbers of values are limited before anything is decoded, the rest before anything is
judged. So whatever judges or shows evidence works on finite figures and on texts of bounded length.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ddoctor.evidence.section import Section

MOST_BYTES = 512 * 2**20
"""Bytes of a bundle: 4,096 hosts with 8 GPUs each take 400 MiB."""
MOST_VALUES = 20_000_000
"""Values of a bundle: those hosts have 15 million."""
MOST_ROWS = 1_000_000
"""Entries of one list."""
LONGEST_TEXT = 100_000
"""Characters of one text; ddoctor itself keeps 4,000 of a message."""
LARGEST = 1e18
"""A number: an exabyte in bytes, or 30 billion years in seconds."""
ROUNDING = -1e-6
"""A difference of two clocks or counters may be this little below zero."""


def impossible(section: Section) -> str:
    """What in a section cannot be, and where; empty: nothing.

    Numbers are at least 0, but for those that ``Part.signed`` names.
    """
    told = _wrong(section, signed=False)
    of_host = f" of {section.host[:100]}" if section.host else ""
    return f"{section.label()}{of_host}: {told.lstrip('.')}" if told else ""


def _wrong(value: Any, *, signed: bool) -> str:
    if isinstance(value, msgspec.Struct):
        own = getattr(type(value), "signed", ())
        for name in value.__struct_fields__:
            if told := _wrong(getattr(value, name), signed=name in own):
                return f".{name}{told}"
    elif isinstance(value, (tuple, dict)):
        return _wrong_rows(value, signed=signed)
    elif isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            return f" has {len(value)} characters, and {LONGEST_TEXT} are possible"
    elif isinstance(value, (int, float)) and not 0 <= value <= LARGEST:
        return _wrong_number(value, signed=signed)
    return ""


def _wrong_rows(value: tuple[Any, ...] | dict[Any, Any], *, signed: bool) -> str:
    if len(value) > MOST_ROWS:
        return f" has {len(value)} entries, and {MOST_ROWS} are possible"
    rows = value.items() if isinstance(value, dict) else enumerate(value)
    for key, row in rows:
        if told := _wrong(row, signed=signed):
            return f"[{key}]{told}"
    return ""


def _wrong_number(value: float, *, signed: bool) -> str:
    if value > LARGEST:
        return f" is above {LARGEST:g}"
    if value < -LARGEST:
        return f" is below {-LARGEST:g}"
    return f" is {value:g}, and cannot be below 0" if value < ROUNDING and not signed else ""
