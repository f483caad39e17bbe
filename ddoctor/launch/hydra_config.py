"""The configuration that Hydra composes: its files, the options of its groups, the overrides.

Read as hydra.cc says ("The Defaults List", "Packages", "Basic Override syntax"). Hydra itself would
import what its search path names.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from msgspec.structs import replace as with_fields

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Setting, Unknown
from ddoctor.evidence.source_text import nodes
from ddoctor.launch import files
from ddoctor.launch.option_source import named

# NeMo's `hydra_runner` takes the same arguments.
DECORATORS = ("hydra.main", "hydra_runner")
MOST_NESTED = 10
MOST_FILES = 300
"""Files that are read in a turn, each as often as it is named."""
# Overrides within files are known after the files were read; each turn may name more files.
MOST_TURNS = 5
ENDING = re.compile(r"\.ya?ml$")
PACKAGE = re.compile(r"\A(?:\s*#.*\n)*?\s*#\s*@package\s+(?P<name>\S+)")
OVERRIDE = re.compile(r"(?P<adds>\+{0,2})(?P<key>[\w./-]+)(?:@[\w.]+)?=(?P<value>.*)", re.DOTALL)
REFERENCE = re.compile(r"\$\{(?P<name>[\w.]+)\}")
NOTHING = ("null", "", "None")
OF_SOURCE = re.compile(r"ConfigStore|structured")
"""What makes parts of a configuration from classes of the script."""


@dataclass(kw_only=True)
class Composed:
    """A configuration; of several settings with one name, the first wins."""

    settings: list[Setting] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _Override:
    key: str
    value: str
    adds: bool
    setting: Setting


def read(
    tree: ast.Module, script: Path, given: Sequence[tuple[str, Setting]], folder: Path
) -> Composed | None:
    """The configuration of a script that Hydra starts; None: it starts no part of this one.

    ``given``: each argument with the word that names it.
    """
    call = next(_decorators(tree), None)
    if call is None:
        return None
    written = {one.arg: named(one.value) for one in call.keywords if one.arg}
    options = {word: one.value for word, one in given if word.startswith("-")}
    place = options.get("--config-path") or options.get("-cp") or written.get("config_path", "")
    name = options.get("--config-name") or options.get("-cn") or written.get("config_name", "")
    if not name or name == "None":
        return None
    roots = [script.parent / ("" if place == "None" else place)]
    if more := options.get("--config-dir") or options.get("-cd"):
        roots.append(folder / more)
    reader = _Reader(roots, folder, [*_overrides(given)])
    composed = reader.compose(ENDING.sub("", name))
    if reader.complete and not any(
        OF_SOURCE.search(named(node)) for node in nodes(tree).of(ast.Name, ast.Attribute)
    ):
        composed.unknown += reader.unknown(composed.settings)
    return composed


def _decorators(tree: ast.Module) -> Iterator[ast.Call]:
    for node in nodes(tree).of(ast.FunctionDef):
        for one in node.decorator_list:
            if isinstance(one, ast.Call) and ast.unparse(one.func) in DECORATORS:
                yield one


def _overrides(given: Sequence[tuple[str, Setting]]) -> Iterator[_Override]:
    for word, one in given:
        text = one.value if one.name == "arg." else word
        if (match := OVERRIDE.fullmatch(text)) and not match["key"].startswith("hydra"):
            yield _Override(
                key=match["key"], value=match["value"], adds=bool(match["adds"]), setting=one
            )


class _Reader:
    """Reads the files of one configuration."""

    def __init__(self, roots: Sequence[Path], folder: Path, overrides: Sequence[_Override]) -> None:
        self.complete = True
        """Whether all files were found."""
        self._roots = roots
        self._folder = folder
        self._overrides = overrides
        self._typed = {one.key: one for one in overrides if "/" in one.key or self._group(one.key)}
        self._choices = {key: one.value for key, one in self._typed.items()}
        self._met: set[str] = set()
        self._missing: list[Unknown] = []
        self._name = ""
        self._count = 0

    def compose(self, name: str) -> Composed:
        """Merge the primary file, what its defaults name, and what the command line adds."""
        self._name = name
        for _ in range(MOST_TURNS):
            before = dict(self._choices)
            self.complete, self._missing, self._count = True, [], 0
            read: dict[str, None] = {}
            merged = [*self._file("", name, "", read, MOST_NESTED)]
            for key, one in self._typed.items():
                if one.adds and key not in self._met:
                    package = key.replace("/", ".")
                    for option in _list(one.value):
                        merged += self._file(key, option, package, read, MOST_NESTED)
            if self._choices == before:
                break
        winners = {one.name: one for one in merged}
        winners |= {one.setting.name: one.setting for one in self._overrides}
        merged = [_resolved(one, winners) for one in merged]
        # What is merged later wins.
        return Composed(settings=merged[::-1], files=[*read], unknown=self._missing)

    def unknown(self, settings: Sequence[Setting]) -> Iterator[Unknown]:
        """Overrides of keys that the configuration does not have: Hydra refuses them."""
        names = {one.name.removeprefix("arg.") for one in settings}
        names |= {name[:at] for name in names for at, letter in enumerate(name) if letter == "."}
        for one in self._overrides:
            if one.adds or one.key in self._typed or one.key in names:
                continue
            nearest = difflib.get_close_matches(one.key, names, 1, 0.75)
            yield Unknown(
                setting=with_fields(one.setting, name=one.key),
                of=f"Hydra's configuration {self._name}",
                nearest=next(iter(nearest), ""),
            )

    def _group(self, key: str) -> bool:
        return any((root / key).is_dir() for root in self._roots) if key.isidentifier() else False

    def _path(self, group: str, name: str) -> Path | None:
        ends = (f"{ENDING.sub('', name)}{end}" for end in (".yaml", ".yml"))
        paths = (root / group / end for end in ends for root in self._roots)
        return next((path for path in paths if files.is_there(path)), None)

    def _file(
        self, group: str, name: str, package: str, read: dict[str, None], depth: int
    ) -> Iterator[Setting]:
        """The settings of a file with its defaults, in the order in which they are merged."""
        path = self._path(group, name)
        self._count += 1
        if path is None or not depth or self._count > MOST_FILES:
            self.complete = False
            return
        shown = os.path.relpath(path, self._folder)
        try:
            rows = files.settings(path, shown)
            header = PACKAGE.match(files.text(path, shown))
        except DoctorError:
            self.complete = False
            return
        read[shown] = None
        if header is not None and header["name"] != "_group_":
            package = "" if header["name"] == "_global_" else header["name"]
        prefix = f"arg.{package}." if package else "arg."
        own = [
            with_fields(one, name=prefix + one.name)
            for one in rows
            if one.name.partition(".")[0] != "defaults"
        ]
        entries = [*_entries(rows)]
        if not any(option == "_self_" for _, option in entries):
            # Hydra 1.1 and later: the file itself comes last.
            entries.append(("", "_self_"))
        for key, value in entries:
            if key.startswith("override "):
                self._choices.setdefault(_joined("", key.removeprefix("override ")), value)
        for key, value in entries:
            if value == "_self_":
                yield from own
            elif not key.startswith("override "):
                yield from self._default(key, value, group, package, read, depth - 1)

    def _default(
        self, key: str, value: str, group: str, package: str, read: dict[str, None], depth: int
    ) -> Iterator[Setting]:
        """What one entry of a list of defaults brings."""
        optional = key.startswith("optional ")
        key, _, moved = key.removeprefix("optional ").partition("@")
        if not key:
            # A file of the same folder, or /group/file.
            path = PurePosixPath(_joined(group, value))
            yield from self._file(str(path.parent), path.name, package, read, depth)
            return
        whole = _joined(group, key)
        if whole.partition("/")[0] == "hydra":
            return
        self._met.add(whole)
        if not moved:
            inner = whole.replace("/", ".")
        elif moved == "_global_":
            inner = ""
        else:
            inner = package if moved == "_here_" else ".".join(filter(None, (package, moved)))
        for option in _list(self._choices.get(whole, value)):
            if self._path(whole, option) is not None:
                yield from self._file(whole, option, inner, read, depth)
            elif (typed := self._typed.get(whole)) is not None and self._group_files(whole):
                found = self._group_files(whole)
                self._missing.append(
                    Unknown(
                        setting=with_fields(typed.setting, name=f"{whole}={option}"),
                        of=f"Hydra's group {whole}",
                        nearest=next(iter(difflib.get_close_matches(option, found, 1, 0.6)), ""),
                    )
                )
            elif not optional:
                self.complete = False

    def _group_files(self, group: str) -> list[str]:
        """The options of a group."""
        found = [path for root in self._roots for path in sorted((root / group).glob("*.y*ml"))]
        return [path.stem for path in found]


def _entries(rows: Sequence[Setting]) -> Iterator[tuple[str, str]]:
    """The entries of a list of defaults: the group, or nothing, and its option."""
    for one in rows:
        first, _, rest = one.name.partition(".")
        if first != "defaults":
            continue
        if not rest:
            yield from (("", option) for option in _list(one.value))
        else:
            yield rest.partition(".")[2], one.value


def _list(value: str) -> list[str]:
    options = [one.strip() for one in value.strip("[]").split(",")]
    return [one for one in options if one not in NOTHING]


def _joined(group: str, key: str) -> str:
    """A group's path from the root of the configuration."""
    return key.lstrip("/") if key.startswith("/") or not group else f"{group}/{key}"


def _resolved(setting: Setting, winners: Mapping[str, Setting]) -> Setting:
    """A setting whose value names another one has its value."""
    value = setting.value
    for _ in range(MOST_NESTED):
        match = REFERENCE.fullmatch(value)
        other = winners.get(f"arg.{match['name']}") if match else None
        if other is None:
            break
        value = other.value
    return with_fields(setting, value=value) if value != setting.value else setting
