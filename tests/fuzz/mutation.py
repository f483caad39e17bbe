"""Changes of a JSON document and of bytes, each determined by a random generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Json = Any
"""A decoded JSON value."""

INTEGERS = (0, 0, 1, 1, 2, 3, 7, 64, 255, 4096, 2**31, 2**53, 10**18, -1, 2**63)
REALS = (0.0, 0.0, -0.0, 0.5, 1.0, 1e-300, 1e-9, 1e9, 1e18, -1.0, 1e300)
TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "1e999",
    "nan",
    "None",
    "a" * 5_000,
    "word " * 2_000,
    "a_" * 4_000,
    "two\nlines",
    "<script>alert(1)</script>",
    "</code></pre><img src=x onerror=alert(1)>",
    "[red]x[/red]",
    "[/]",
    "](http://x) ![x](http://x) <http://x> https://x.example",
    "`tick ``` ~~~ | pipe * star _ under # head",
    "\x1b[31mred\x1b[0m\x07\x9b2J",
    "\u202egnp.exe\u2066",
    "\x00",
    "\udcff",
    "%h %s %d {0} {x} {",
    "$(id) `id` ; rm -rf ~",
    "::::",
    "999.1.1.1",
    "10.0.0.1/99",
    "fe80::1%eth0",
    "../../etc/passwd",
    "2.x.y+cu",
    "9" * 5_000,
    "\N{GREEK SMALL LETTER MU}\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 50,
)


def changed(document: Json, random: Random, changes: int) -> None:
    """Change so many values of the document, in place."""
    for _ in range(changes):
        holder, key = _place(document, random)
        if holder is not None:
            _change(holder, key, document, random)


def damaged(raw: bytes, random: Random) -> bytes:
    """The bytes with a part cut out, doubled, overwritten or made of another."""
    if not raw:
        return random.randbytes(8)
    at, length = random.randrange(len(raw)), random.choice((1, 1, 2, 8, 64, 1024))
    part = raw[at : at + length]
    new: Callable[[], bytes] = random.choice(
        (
            lambda: b"",
            lambda: part * random.choice((2, 3, 50)),
            lambda: random.randbytes(len(part)),
            lambda: bytes([part[0] ^ (1 << random.randrange(8))]) + part[1:],
            lambda: random.choice((b"[" * 2_000, b'{"a":' * 2_000, b"9" * 400, b"\xff", b"\0")),
            lambda: part[::-1],
        )
    )
    return raw[:at] + new() + raw[at + len(part) :]


def _place(document: Json, random: Random) -> tuple[Json, Any]:
    """The holder and the key of a value: each step down is as likely as its siblings.

    So a list of thousand numbers is not met a thousand times as often as a name.
    """
    holder, key, value = None, None, document
    while isinstance(value, (dict, list)) and value:
        # Without an object or its type there is little left to read.
        whole = isinstance(value, dict)
        if holder is not None and random.random() < (0.01 if whole else 0.12):
            break
        keys: Sequence[Any] = list(value) if whole else range(len(value))
        if whole and len(keys) > 1 and random.random() < 0.99:
            keys = [name for name in keys if name != "type"]
        holder, key = value, random.choice(keys)
        value = holder[key]
    return holder, key


def _change(holder: Json, key: Any, document: Json, random: Random) -> None:
    value = holder[key]
    chance = random.random()
    if isinstance(holder, dict) and chance < 0.02:
        del holder[key]
    elif chance < 0.04:
        holder[key] = random.choice((None, True, 0, 1.5, "x", [], {}, [[]], [None], {"": 0}))
    elif chance < 0.2:
        other, name = _place(document, random)
        # A figure of another place; what holds this value would hold itself.
        if isinstance(other[name], type(value)) and not isinstance(value, (dict, list)):
            holder[key] = other[name]
    elif isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = random.choice((*INTEGERS, -value, value + 1, abs(value - 1), value * 1_000))
    elif isinstance(value, float):
        holder[key] = random.choice((*REALS, -value, value * 1_000, value / 1_000, round(value)))
    elif isinstance(value, str):
        holder[key] = random.choice(TEXTS) if random.random() < 0.7 else _word(value, random)
    elif isinstance(value, list):
        holder[key] = _zeros(value) if chance > 0.9 else _list(value, random)
    elif isinstance(value, dict):
        holder[key] = random.choice(({}, None, [value], dict(list(value.items())[::2])))
    else:
        holder[key] = random.choice((0, 1, -1, 0.5, "x", [], [0], True, [[0, 0]]))


def _word(value: str, random: Random) -> str:
    at = random.randrange(len(value) + 1)
    put = random.choice(("", " ", "0", "-", ".", "/", "%", "\n", ",", "x"))
    return value[:at] + put + value[at + 1 :]


def _zeros(value: list[Json]) -> list[Json]:
    return [0 if isinstance(one, (int, float)) else one for one in value]


def _list(value: list[Json], random: Random) -> list[Json]:
    at = random.randrange(len(value) + 1)
    return random.choice(
        (
            [],
            value[:1],
            value[: len(value) // 2],
            value[:at] + value[at + 1 :],
            value * 3,
            value[::-1],
            [*value, *value[-1:]],
            [value] if value else [[]],
        )
    )
