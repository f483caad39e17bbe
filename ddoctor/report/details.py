"""Any section of evidence as readable rows, whatever its fields are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec

from ddoctor.evidence.section import Evidence, Section
from ddoctor.report.places import ranges
from ddoctor.report.wording import Grid, quantity

UNKNOWN = "–"

MANY = 8
"""A list of more measured values than this is summarised."""


@dataclass(frozen=True, kw_only=True)
class Detail:
    """One field of a section."""

    label: str
    value: str | Grid


def details(
    evidence: Evidence, host: str, leave: tuple[type[Section], ...]
) -> dict[str, tuple[Detail, ...]]:
    """Return the fields of a host's sections by label, without the section types to leave out."""
    sections = (s for s in evidence if s.host == host and not isinstance(s, leave))
    return {section.label().replace("-", " "): tuple(_fields(section)) for section in sections}


def _fields(section: Section) -> Iterator[Detail]:
    fields: dict[str, Any] = msgspec.to_builtins(section)
    for name, value in fields.items():
        if name in ("type", "host") or (name == "unseen" and not value):
            continue
        parts = isinstance(value, tuple) and value and isinstance(value[0], dict)
        yield Detail(label=_words(name), value=_grid(value) if parts else _text(value))


def _grid(parts: tuple[dict[str, Any], ...]) -> Grid:
    columns = tuple(parts[0])
    return Grid(
        head=tuple(map(_words, columns)),
        rows=tuple(tuple(_text(part.get(column)) for column in columns) for part in parts),
    )


def _text(value: Any) -> str:
    if value is None or value == "":
        return UNKNOWN
    if value == ():
        return "none"
    if isinstance(value, tuple) and len(value) > MANY and all(map(_measured, value)):
        least, most = quantity(min(value)), quantity(max(value))
        return f"{len(value)} from {least} to {most}, median {quantity(median(value))}"
    if isinstance(value, tuple):
        whole = all(isinstance(item, int) and not isinstance(item, bool) for item in value)
        return ranges(value) if whole else ", ".join(map(_text, value))
    if isinstance(value, dict):
        return ", ".join(f"{_words(name)} {_text(item)}" for name, item in value.items())
    return quantity(value)


def _measured(value: Any) -> bool:
    return isinstance(value, float)


def _words(name: str) -> str:
    return name.replace("_", " ")
