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
from ddoctor.evidence.secret_names import NAME_IN_TEXT, SECRET_NAME, STRICT, is_secret

_QUOTED = r"(?:\b[rbuRBU]{1,2})?(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
# A comma ends it only where something else follows: passwords have some, too.
_BARE = r"(?!\()(?:[^\s,;&)\]}'\"]|,(?=[^\s,;&)\]}'\"{\[(])(?![\w.+-]+[=:]))+"
NAMED = re.compile(
    # A name has a beginning: otherwise the time would grow with the square of a text's length.
    rf"((?<![\w.-])(?=[\w.-]*?(?:{NAME_IN_TEXT.pattern}))"
    r"-{0,2}(?:(?:API|ACCESS|PRIVATE) )?[A-Za-z_][\w.-]*)"
    # name=value, name: value, "name": "value", d["name"] = "value", name: str = "value".
    r"((?:\\{0,3}[\"']\]?|\[\w+\]|\))?\s{0,40}"
    r"(?::\s{0,4}(?:Optional\[)?(?:str|bytes|int|float|SecretStr)\]?(?:\s?\|\s?None)?\s{0,4}(?==))?"
    # name := value, name => value, name -> value, and the same in a URL.
    r"(?::?=>?(?!=)|:|->|%3[AD](?:%2[02])?)\s{0,40}"
    # put("name", "value")
    r"|[\"'],\s{0,4}(?=b?[\"'])"
    # <name>value</name>, \u0022name\u0022:\u0022value\u0022, &quot;name&quot;:&quot;value&quot;
    r"|>(?=[^<>\s]{1,200}</)|(?:\\u0022|&quot;):\s?(?:\\u0022|&quot;))"
    # An escaped quotation mark, the scheme of a header, or a call around the value.
    r"(\\*(?:(?:Bearer|Basic|Token|Digest) +)?)"
    rf"([A-Za-z_][\w.]*\({_QUOTED}\)|{_QUOTED}|(?<=>)[^<>\s]+(?=</)|{_BARE}|(?<=\\)[\"'][^\"'\\]*)",
    re.IGNORECASE,
)
"""A name and a value within a text."""
OPTION = re.compile(
    rf"((?:^|(?<=[\s'\"(\[]))--?[A-Za-z][\w.-]*)(=|\s+|['\"],\s{{0,4}})(?![-\s])({_QUOTED}|\S+)"
)
"""An option of a command line or of a list of words within a text, with its value."""
SPOKEN = re.compile(
    rf"((?<![\w.-])(?=[\w.-]*?(?:{NAME_IN_TEXT.pattern}))"
    r"(?:(?:API|ACCESS|PRIVATE) )?[A-Za-z_][\w.-]*)"
    # A column of a table, or a few words.
    r"([ \t]{1,40}(?:[|│] ?)?(?:(?:is|was|provided|given|for [\w.@-]+):? )?\(?)"
    rf"({_QUOTED}|[^\s'\"/~.<\[(|│][^\s'\",;)]*)",
    re.IGNORECASE,
)
"""A name in a sentence, and the word behind it."""
KEYED = re.compile(r"""(\bkey\\?['"]?\s?[=:]\s?\\?['"]?)([\w+/-]{20,}={0,2})""", re.IGNORECASE)
"""A mere ``key`` with a long word: it may be that of a dictionary, or of a service."""
SETTING = re.compile(r"[-+~]*[\w.@/-]+")
"""What may stand before an equals sign; base64 ends with one, too."""
LOGIN = re.compile(
    rf"(\blogin\((?:[^()]{{0,200}}?\bkey\s?=\s?)?|\bauth\s?=\s?\(\s?{_QUOTED},\s?"
    rf"|Auth\(\s?{_QUOTED},\s?)({_QUOTED})|(\blogin\s+\S+\s+password\s+)\S+"
)
"""A login in source code, where even ``key`` is a secret, or in a file .netrc."""
USER_OPTION = re.compile(
    r"((?:^|(?<=\s))(?:-u|--(?:proxy-)?user)[= ]['\"]?[^\s:'\"]+:)(?!\d+(?:\s|$))[^\s'\"]+"
    # Programs that take a password as -p or -a.
    r"|((?:\bsshpass|\blogin|\bmysql\w*)\s(?:.{0,99}?\s)?-p\s?|\bredis-cli\s(?:.{0,99}?\s)?-a\s?)"
    r"(?=\S)\S+"
)
"""User and password as curl takes them; two numbers are IDs of a user and a group."""

# Fields that look random and are public: sections are matched by the names of their hosts.
KEPT = ("host", "hosts", "commit")

SPARE = 4000
"""Characters of a text that are read beyond its cut: more than a key has."""

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
    option, line = "", ""
    for word in arguments:
        name, equals, value = word.partition("=")
        if not SETTING.fullmatch(name):
            equals = ""
        line = f"{line[-200:]} {word}"
        # `sh -c "HF_TOKEN=… train"` has more than the value behind the name.
        if equals and is_secret(name, value) and not (option == "-c" and " " in value):
            yield f"{name}={HIDDEN}"
        elif option and not word.startswith("-") and is_secret(option, word):
            yield HIDDEN
        elif login := next(
            (one for one in USER_OPTION.finditer(line) if one.end() == len(line)), None
        ):
            # Of `-u me:…` and `-p…` the beginning stays.
            yield line[len(line) - len(word) : max(login.end(1), login.end(2))] + HIDDEN
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
    told = LOGIN.sub(rf"\1\3{HIDDEN}", told)
    told = NAMED.sub(_named, told)
    told = OPTION.sub(_option, told)
    told = SPOKEN.sub(_spoken, told)
    told = KEYED.sub(_keyed, told)
    told = USER_OPTION.sub(rf"\1\2{HIDDEN}", told)
    return drawn_words.hide(told)


def beginning(given: str, most: int) -> str:
    """The first ``most`` characters of a text without secrets; a part of a key has no form."""
    return text(given[: most + SPARE])[:most]


def end(given: str, most: int) -> str:
    """Its last ``most`` characters."""
    return text(given[-most - SPARE :])[-most:]


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
        if isinstance(name, str) and isinstance(value, str):
            told["value"] = HIDDEN if SECRET_NAME.search(name) else _of_option(name, value)
        return told
    if isinstance(given, (list, tuple)) and given:
        if all(isinstance(one, str) for one in given):
            return type(given)(words(given))
        if isinstance(given[0], (int, float)):
            return given
        return type(given)(map(_value, given))
    return given


def _of_option(name: str, value: str) -> str:
    """The value of an option, such as ``arg.u`` or ``-u``, as in a command line behind it."""
    last = name.rpartition(".")[2].lstrip("-")
    *_, told = words((f"{'-' if len(last) == 1 else '--'}{last}", value))
    return told


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
    quoted = value[-1] in "'\"" and STRICT.search(name)
    drawn = quoted or known_secrets.has_letters_and_digits(value)
    if drawn and is_secret(name, value, NAME_IN_TEXT):
        return f"{name}{between}{HIDDEN}"
    return found.group()


def _keyed(found: re.Match[str]) -> str:
    name, value = found.groups()
    return f"{name}{HIDDEN}" if known_secrets.has_letters_and_digits(value) else found.group()
