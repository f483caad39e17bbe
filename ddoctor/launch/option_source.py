"""The options of a program, from the source of its argparse parser, which is not imported.

Launchers import torch, which takes seconds; the source of a user's script must not be executed.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ddoctor.evidence.launch import Setting
from ddoctor.evidence.source_text import MOST_TREES, nodes

FLAGS = (
    *("store_true", "store_false", "store_const", "BooleanOptionalAction"),
    *("count", "help", "version", "check_env"),
)
"""Actions without a value; the last is torchrun's own."""
MANY = ("*", "+", "?")


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option, or a positional argument."""

    names: tuple[str, ...]
    """As on the command line, with dashes; a positional has its plain name."""
    takes: int | None
    """Number of its values; None: as many as follow."""
    default: str | None = None
    """None: none is written, or it is no constant."""
    help: str = ""
    line: int = 0

    @property
    def key(self) -> str:
        """Its name in the parsed result."""
        long = next((name for name in self.names if name.startswith("--")), self.names[0])
        return plain(long)


@dataclass(frozen=True, kw_only=True)
class Given:
    """An option on a command line, with the number of its first word."""

    key: str
    value: str
    word: int


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """A command line, up to its first positional argument."""

    given: tuple[Given, ...]
    unknown: tuple[Given, ...]
    rest: int
    """Number of the first word after the options."""


@dataclass(frozen=True)
class Options:
    """The options of a program."""

    rows: tuple[Option, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Option]:
        """The options by each of their names, without dashes at the front."""
        return {plain(name): row for row in self.rows for name in row.names if name[:1] == "-"}

    def find(self, word: str) -> Option | None:
        """The option that a word names, which may be the beginning of its name."""
        name = plain(word.partition("=")[0])
        if (found := self.by_name.get(name)) is not None:
            return found
        begin = {id(row): row for key, row in self.by_name.items() if key.startswith(name)}
        return next(iter(begin.values())) if len(begin) == 1 and word[:2] == "--" else None

    def nearest(self, word: str) -> str:
        """A known name that is written alike; empty: there is none."""
        names = [name for row in self.rows for name in row.names if name.startswith("--")]
        return next(iter(difflib.get_close_matches(word.partition("=")[0], names, 1, 0.75)), "")

    def parse(self, words: Sequence[str]) -> Parsed:
        """Read the options before the first positional argument, as argparse does."""
        given: list[Given] = []
        unknown: list[Given] = []
        at = 0
        while at < len(words) and words[at].startswith("-") and words[at] != "-":
            word, begin = words[at], at
            at += 1
            if word == "--":
                break
            name, equals, value = word.partition("=")
            option = self.find(word)
            if option is None and word[1] != "-" and (option := self.find(word[:2])):
                # A letter with its value, such as -N2.
                name, equals, value = word[:2], "=", word[2:]
            if option is None:
                # A value may follow, which argparse would take for the script.
                unknown.append(Given(key=name, value=value, word=begin))
                continue
            if option.takes == 0:
                given.append(Given(key=option.key, value=value or "true", word=begin))
                continue
            if not equals:
                values = [*_values(words[at:], option.takes)]
                at += len(values)
                value = " ".join(values)
            given.append(Given(key=option.key, value=value, word=begin))
        return Parsed(given=tuple(given), unknown=tuple(unknown), rest=at)


def _values(words: Sequence[str], number: int | None) -> Iterator[str]:
    for place, word in enumerate(words):
        if number is not None and place >= number:
            return
        if number is None and word.startswith("-"):
            return
        yield word


def plain(name: str) -> str:
    """Return an option's name without leading dashes, and with underscores."""
    return name.lstrip("-").replace("-", "_")


@lru_cache(maxsize=MOST_TREES)
def options_of(tree: ast.AST) -> Options:
    """All options that calls of ``add_argument``, or click's ``option``, define in this source."""
    return Options(tuple(filter(None, map(_option, nodes(tree).of(ast.Call)))))


def _option(node: ast.Call) -> Option | None:
    if not isinstance(node.func, ast.Attribute):
        return None
    by_click = node.func.attr == "option"
    if not by_click and node.func.attr != "add_argument":
        return None
    names = tuple(
        word.value
        for word in node.args
        if isinstance(word, ast.Constant) and isinstance(word.value, str) and word.value
    )
    if not names or (by_click and (names[0][0] != "-" or any("/" in one for one in names))):
        return None
    keywords = {word.arg: word.value for word in node.keywords if word.arg}
    action, number = named(keywords.get("action")), keywords.get("nargs")
    if action == "BooleanOptionalAction":
        names += tuple(f"--no-{name[2:]}" for name in names if name.startswith("--"))
    flag = action in FLAGS or named(keywords.get("is_flag")) == "True"
    takes: int | None = 0 if flag else 1
    if isinstance(number, ast.Constant):
        takes = number.value if isinstance(number.value, int) else None
    elif number is not None:
        takes = None
    default = keywords.get("default")
    value = default.value if isinstance(default, ast.Constant) else None
    if default is None and (action == "store_true" or (by_click and flag)):
        value = False
    return Option(
        names=names,
        takes=takes,
        default=None if value is None else str(value),
        help=_text(keywords.get("help")),
        line=node.lineno,
    )


def _text(node: ast.expr | None) -> str:
    known = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if known else ""  # type: ignore[union-attr]


def named(node: ast.expr | None) -> str:
    """A constant, or the name of a class or function without what it is of."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def parsed_number(tree: ast.Module, node: ast.expr, known: Sequence[Setting]) -> Setting | None:
    """The number that an option gives an expression such as ``args.workers``; None: not known.

    It is an attribute of what ``parse_args`` returns, and no line sets it. ``known``: the options.
    """
    if not isinstance(node, ast.Attribute):
        return None
    made = [
        one.value
        for one in nodes(tree).of(ast.Assign)
        if ast.unparse(one.targets[0]) == ast.unparse(node.value)
    ]
    parsed = [isinstance(one, ast.Call) and named(one.func) == "parse_args" for one in made]
    stored = [
        one
        for one in nodes(tree).of(ast.Attribute)
        if isinstance(one.ctx, ast.Store) and one.attr == node.attr
    ]
    if not parsed or not all(parsed) or stored:
        return None
    given = next((one for one in known if one.name == f"arg.{node.attr}"), None)
    return given if given is not None and given.number else None
