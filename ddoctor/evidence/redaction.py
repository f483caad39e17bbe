"""Removes what might be a secret from text, command lines and sections.

It may remove too much: a value that is missing in a report costs little, a key in it costs a lot.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from ddoctor.evidence import drawn_words, known_secrets
from ddoctor.evidence.secret_forms import BEARER, FORMS, HIDDEN, SIGNED, USER
from ddoctor.evidence.secret_names import NAME_IN_TEXT, SECRET_NAME, is_secret

_QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'"
NAMED = re.compile(
    # A name has a beginning: otherwise the time would grow with the square of a text's length.
    rf"((?<![\w.-])(?=[\w.-]*?(?:{NAME_IN_TEXT.pattern}))"
    r"(?:(?:API|ACCESS|PRIVATE) )?[A-Za-z_][\w.-]*)"
    # name=value, name: value, "name": "value", d["name"] = "value", name: str = "value".
    r"((?:\\{0,3}[\"']\]?)?\s{0,40}"
    r"(?::\s{0,4}(?:Optional\[)?(?:str|bytes|int|float|SecretStr)\]?(?:\s?\|\s?None)?\s{0,4}(?==))?"
    r"[=:](?!=)\s{0,40}"
    # put("name", "value")
    r"|[\"'],\s{0,4}(?=[\"']))"
    # An escaped quotation mark, or the scheme of a header.
    r"(\\*(?:(?:Bearer|Basic|Token|Digest) +)?)"
    rf"({_QUOTED}|[^\s,;&)\]}}'\"]+|(?<=\\)[\"'][^\"'\\]*)",
    re.IGNORECASE,
)
"""A name and a value within a text."""
OPTION = re.compile(rf"((?:^|(?<=\s))--?[A-Za-z][\w.-]*)([= ]+)(?![-\s])({_QUOTED}|\S+)")
"""An option of a command line within a text, with its value."""
SPOKEN = re.compile(
    rf"((?<![\w.-])(?=[\w.-]*?(?:{NAME_IN_TEXT.pattern}))"
    r"(?:(?:API|ACCESS|PRIVATE) )?[A-Za-z_][\w.-]*)( (?:is |was )?)"
    rf"({_QUOTED}|[^\s'\"/~.<\[(][^\s'\",;)]*)",
    re.IGNORECASE,
)
"""A name in a sentence, and the word behind it."""
KEYED = re.compile(r"""(\bkey\\?['"]?\s?[=:]\s?\\?['"]?)([\w+/-]{20,}={0,2})""", re.IGNORECASE)
"""A mere ``key`` with a long word: it may be that of a dictionary, or of a service."""
LOGIN = re.compile(rf"(\blogin\([^()]{{0,200}}?\bkey\s?=\s?)({_QUOTED})")
"""A login in source code, where even ``key`` is a secret."""
USER_OPTION = re.compile(
    r"((?:^|(?<=\s))(?:-u|--(?:proxy-)?user)[= ]['\"]?[^\s:'\"]+:)(?!\d+\b)[^\s'\"]+"
)
"""User and password as curl takes them; two numbers are IDs of a user and a group."""

# Fields that look random and are public: sections are matched by the names of their hosts.
KEPT = ("host", "hosts", "commit")

Kind = TypeVar("Kind")


def remember(environment: Mapping[str, str], arguments: Iterable[str]) -> None:
    """From now on, what a variable, an option or a URL among these gives away is a secret.

    Those of this process, as it began, are known anyway.
    """
    if known_secrets.remember(environment, arguments):
        text.cache_clear()


def redact(section: Kind) -> Kind:
    """The same struct without secrets in any of its texts; the struct itself if it has none."""
    import msgspec  # A message about a broken installation passes `text`, too.

    plain = msgspec.to_builtins(section, builtin_types=(msgspec.Raw,))
    told = _value(plain)
    return section if told == plain else msgspec.convert(told, type(section))


def encoded(value: object) -> bytes:
    """The JSON of a value, also if a name in it is no UTF-8."""
    import msgspec

    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(redact(value))


def words(arguments: Iterable[str]) -> Iterator[str]:
    """A command line: ``--name value`` and ``name=value`` by the name, others by their form."""
    option = ""
    for word in arguments:
        name, equals, value = word.partition("=")
        # `sh -c "HF_TOKEN=… train"` has more than the value behind the name.
        if equals and is_secret(name, value) and (word.startswith("-") or " " not in value):
            yield f"{name}={HIDDEN}"
        elif option and not word.startswith("-") and is_secret(option, word):
            yield HIDDEN
        else:
            yield text(word)
        option = word if word.startswith("-") and not equals else ""


@lru_cache(maxsize=20_000)
def text(given: str) -> str:
    """A text without secrets, in characters that any file can hold; the rest is unchanged.

    A file's name may have bytes that are no UTF-8: they are written as ``\\xff``. Gone are the
    values that `remember` got, known forms of keys, user information of URLs, values behind a name
    that says secret, and words above 32 characters that look random.
    """
    if not given.isascii():
        given = _encodable(given)
    if len(given) < 6:
        return given
    _remember_own()
    told = FORMS.sub(HIDDEN, known_secrets.hide(given))
    if "@" in told:
        told = USER.sub(HIDDEN, told)
    told = SIGNED.sub(HIDDEN, told)
    told = BEARER.sub(rf"\1{HIDDEN}", told)
    told = NAMED.sub(_named, told)
    told = OPTION.sub(_option, told)
    told = SPOKEN.sub(_spoken, told)
    told = KEYED.sub(_keyed, told)
    told = LOGIN.sub(rf"\1{HIDDEN}", told)
    told = USER_OPTION.sub(rf"\1{HIDDEN}", told)
    return drawn_words.hide(told)


@lru_cache(maxsize=1)
def _remember_own() -> None:
    known_secrets.remember(os.environ, sys.orig_argv)


def _encodable(given: str) -> str:
    try:
        # Python reads such a byte as half of a character.
        return given.encode(errors="surrogateescape").decode(errors="backslashreplace")
    except UnicodeEncodeError:
        return given.encode(errors="backslashreplace").decode()


def _value(given: Any) -> Any:
    if isinstance(given, str):
        return text(given)
    if isinstance(given, dict):
        told = {name: _kept(one) if name in KEPT else _value(one) for name, one in given.items()}
        name, value = given.get("name"), given.get("value")
        if isinstance(name, str) and isinstance(value, str) and SECRET_NAME.search(name):
            told["value"] = HIDDEN
        return told
    if isinstance(given, (list, tuple)) and given:
        if all(isinstance(one, str) for one in given):
            return type(given)(words(given))
        if isinstance(given[0], (int, float)):
            return given
        return type(given)(map(_value, given))
    return given


def _kept(given: Any) -> Any:
    if isinstance(given, str):
        return _encodable(given)
    if isinstance(given, (list, tuple)):
        return type(given)(map(_kept, given))
    return _value(given)


def _named(found: re.Match[str]) -> str:
    name, between, scheme, value = found.groups()
    if value == HIDDEN or not is_secret(name, value, NAME_IN_TEXT):
        return found.group()
    return f"{name}{between}{scheme}{HIDDEN}"


def _option(found: re.Match[str]) -> str:
    name, between, value = found.groups()
    return f"{name}{between}{HIDDEN}" if is_secret(name, value) else found.group()


def _spoken(found: re.Match[str]) -> str:
    name, between, value = found.groups()
    # "password is required", "invalid token 'foo'": a word of a language has no digits.
    if known_secrets.has_letters_and_digits(value) and is_secret(name, value, NAME_IN_TEXT):
        return f"{name}{between}{HIDDEN}"
    return found.group()


def _keyed(found: re.Match[str]) -> str:
    name, value = found.groups()
    return f"{name}{HIDDEN}" if known_secrets.has_letters_and_digits(value) else found.group()
