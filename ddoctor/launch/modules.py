"""Classes of Python modules, found from where a script names them; no module is imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ddoctor.errors import DoctorError
from ddoctor.evidence.source_text import nodes, syntax_tree
from ddoctor.launch import files

MOST_BYTES = 2 * 2**20
MOST_STEPS = 12
"""Imports and base classes that are followed."""
WITHOUT_FIELDS = ("object", "ABC", "abc.ABC", "Generic", "Protocol")


@dataclass(frozen=True)
class Module:
    """A module, and where those are that it imports."""

    tree: ast.Module
    path: Path
    roots: tuple[Path, ...] = ()
    """Folders that come before the installed packages."""


@dataclass(frozen=True)
class Field:
    """A field of a dataclass, or of a model of pydantic, and the module that says it."""

    node: ast.AnnAssign
    module: Module


def parsed(path: Path) -> ast.Module | None:
    """The syntax tree of a file; None: it cannot be read."""
    try:
        text = files.text(path, str(path))
        return syntax_tree(text) if len(text) <= MOST_BYTES else None
    except (DoctorError, SyntaxError, ValueError, RecursionError, MemoryError):
        # Reading the script for mistakes says that.
        return None


def module(path: Path, *roots: Path) -> Module | None:
    """The module in a file; None: it cannot be read."""
    tree = parsed(path) if files.is_there(path) else None
    return Module(tree, path, roots) if tree is not None else None


def installed(package: str, source: str) -> Module | None:
    """A module of an installed package; None: it is not installed, or has no such file."""
    found = (module(folder / source) for folder in _folders(package))
    return next(filter(None, found), None)


def _folders(package: str) -> Iterator[Path]:
    spec = None
    with suppress(ImportError, ValueError):
        spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield Path(folder)


def defined(name: str, of: Module, steps: int = MOST_STEPS) -> tuple[ast.ClassDef, Module] | None:
    """The class that a module calls so, and its own module; None: it is not found, or several."""
    own = [one for one in nodes(of.tree).of(ast.ClassDef) if one.name == name]
    if own or not steps:
        return (own[0], of) if len(own) == 1 else None
    head, _, rest = name.rpartition(".")
    for node in nodes(of.tree).of(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import) and head:
            names = {one.asname or one.name: one.name for one in node.names}
            other = _imported(names[head], 0, of) if head in names else None
        elif isinstance(node, ast.ImportFrom) and not head:
            given = {one.asname or one.name: one.name for one in node.names}
            rest = given.get(name, "")
            other = _imported(node.module or "", node.level, of) if rest else None
        else:
            continue
        if other is not None and other.path != of.path:
            return defined(rest, other, steps - 1)
    return None


def _imported(name: str, level: int, of: Module) -> Module | None:
    parts = tuple(filter(None, name.split(".")))
    bases: list[Path] = [*of.roots]
    if level:
        bases = [of.path.parents[min(level, len(of.path.parents)) - 1]]
    elif parts:
        bases += [folder.parent for folder in _folders(parts[0])]
    ends = (base.joinpath(*parts) for base in bases)
    paths = (path for end in ends for path in (end.with_suffix(".py"), end / "__init__.py"))
    found = (module(path, *of.roots) for path in paths)
    return next(filter(None, found), None)


def chain(name: str, of: Module) -> list[tuple[ast.ClassDef, Module]]:
    """A class, its first base, and so on, as far as they are found."""
    found: list[tuple[ast.ClassDef, Module]] = []
    next_one = defined(name, of)
    while next_one is not None and len(found) < MOST_STEPS:
        found.append(next_one)
        node, own = next_one
        next_one = defined(ast.unparse(node.bases[0]), own) if node.bases else None
    return found


def fields(name: str, of: Module, steps: int = MOST_STEPS) -> Mapping[str, Field] | None:
    """The fields of a class with those of its bases; None: a part of them cannot be read."""
    found = defined(name, of)
    if found is None or not steps:
        return None
    node, own = found
    merged: dict[str, Field] = {}
    for base in reversed([ast.unparse(one).partition("[")[0] for one in node.bases]):
        if base not in WITHOUT_FIELDS:
            inherited = fields(base, own, steps - 1)
            if inherited is None:
                return None
            merged |= inherited
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            merged[one.target.id] = Field(one, own)
        elif isinstance(one, ast.If | ast.Try) and any(
            isinstance(inner, ast.AnnAssign) for inner in ast.walk(one)
        ):
            return None
    return merged


def keyword(field: Field, name: str) -> ast.expr | None:
    """What the call that makes a field's default is given, such as ``alias``."""
    call = field.node.value
    words = call.keywords if isinstance(call, ast.Call) else []
    return next((one.value for one in words if one.arg == name), None)


def is_given(field: Field) -> bool:
    """Whether who makes an object of the class may give the field."""
    of_class = re.search(r"\bClassVar\b", ast.unparse(field.node.annotation)) is not None
    return not of_class and getattr(keyword(field, "init"), "value", True) is not False


def may_be_bool(field: Field) -> bool:
    """Whether a value of the field may be true or false."""
    return re.search(r"\bbool\b", ast.unparse(field.node.annotation)) is not None
