"""Values that a variable, an option or a URL of this run gives away: they are secret everywhere.

So a password without any form is recognised in the text of an exception, too.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus

from ddoctor.evidence.secret_forms import HIDDEN, USER
from ddoctor.evidence.secret_names import STRICT, is_secret

SHORTEST = 6
"""Shorter values stand in other words by chance."""
LONG = 12
"""A shorter value is hardly broken over two lines."""
BREAK = r"(?:\s*(?:\n|\\n)\s*)?"

_values: set[str] = set()
_pattern: list[re.Pattern[str]] = []


def remember(environment: Mapping[str, str], arguments: Iterable[str]) -> bool:
    """Learn what these call secret; return whether that is new."""
    found = {
        form
        for name, value in [*environment.items(), *_options(arguments)]
        for one in _secrets(name, value)
        for form in _written(one)
    }
    if found <= _values:
        return False
    _values.update(found)
    # The longest first: one value may be the beginning of another.
    _pattern[:] = [re.compile("|".join(map(_whole, sorted(_values, key=len, reverse=True))))]
    return True


def hide(text: str) -> str:
    """The text without the values that were learned."""
    return _pattern[0].sub(HIDDEN, text) if _pattern else text


def _options(arguments: Iterable[str]) -> Iterator[tuple[str, str]]:
    option = ""
    for word in arguments:
        name, equals, value = word.partition("=")
        if equals:
            yield name, value
        else:
            yield option, word
        option = word if word.startswith("-") and not equals else ""


def _secrets(name: str, value: str) -> Iterator[str]:
    for user in USER.findall(value):
        if len(password := user.partition(":")[2]) >= SHORTEST:
            yield password
    value = value.strip("\"'")
    if len(value) < SHORTEST or value.startswith(("/", "~", ".")) or not is_secret(name, value):
        return
    # `--image-key pixels` names a column.
    if STRICT.search(name) or has_letters_and_digits(value) or not value[1:].islower():
        yield value


def _written(value: str) -> Iterator[str]:
    """The value, and as it stands in a URL, in a string of Python or of JSON, and in base64."""
    yield value
    yield from (quote(value, safe=""), quote(value), quote_plus(value))
    yield from (repr(value)[1:-1], json.dumps(value)[1:-1])
    yield b64encode(value.encode(errors="surrogateescape")).decode()


def has_letters_and_digits(word: str) -> bool:
    """Whether a word is none of a language."""
    return bool(re.search(r"[A-Za-z]", word) and re.search(r"\d", word))


def _whole(value: str) -> str:
    # "password" as a password must leave "passwords"; a colour may stand before it.
    if value.isalpha():
        return rf"(?:\b|(?<=\dm)){value}\b"
    # Whoever fills lines breaks a long one.
    return BREAK.join(map(re.escape, value)) if len(value) >= LONG else re.escape(value)
