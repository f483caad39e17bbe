"""Evidence of which every text is chosen to break a page, a terminal or a ticket."""

from __future__ import annotations

from random import Random
from typing import Any, get_type_hints

import msgspec

from ddoctor.evidence.section import Evidence

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><a href="https://evil.example">x</a>',
    "[link](https://evil.example) ![picture](https://evil.example/x.png)",
    "https://evil.example www.evil.example mailto:me@evil.example @somebody #12",
    "<https://evil.example> [x]: https://evil.example",
    "` <https://evil.example> ` [x](https://evil.example) `",
    "``` \n```\n[x](https://evil.example)",
    "a | b\n\n| [x](https://evil.example) |\n",
    "[red]x[/red] [/] [link=https://evil.example]x[/link] :bomb:",
    "\x1b[31mred\x1b]8;;https://evil.example\x07link\x1b]8;;\x07 \x9b2J\r\x08",
    "\u202egnp.exe\u2066 \u200f\u061c \u2028",
)


def said_by(evidence: Evidence, random: Random, share: float) -> Evidence:
    """The evidence with this share of its texts replaced, wherever any text may stand."""
    return Evidence(_struct(section, random, share) for section in evidence)


def _struct(value: Any, random: Random, share: float) -> Any:
    hints = get_type_hints(type(value), include_extras=True)
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    for name, held in fields.items():
        told = _told(held, random, share)
        # Some texts are one of a few words.
        if told is not held and _fits(told, hints[name]):
            fields[name] = told
    try:
        return type(value)(**fields)
    except ValueError:
        return value


def _fits(told: Any, hint: Any) -> bool:
    try:
        msgspec.convert(msgspec.to_builtins(told), hint)
    except msgspec.ValidationError:
        return False
    return True


def _told(held: Any, random: Random, share: float) -> Any:
    if isinstance(held, msgspec.Struct):
        return _struct(held, random, share)
    if isinstance(held, tuple) and held and not isinstance(held[0], (int, float)):
        return tuple(_told(one, random, share) for one in held)
    if isinstance(held, str) and random.random() < share:
        return random.choice(HOSTILE)
    return held
