"""Attributes and methods of a script's own classes that tell the rank, such as ``world.boss``."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ddoctor.evidence.source_text import below
from ddoctor.script.modules import Module
from ddoctor.script.names import Marks, variable
from ddoctor.script.ranks import kind_of

OF_RANKS = ("one-rank", "other-ranks")
MOST = 3
"""Values of one attribute that are followed: each may name others."""


def rank_names(modules: Sequence[Module]) -> Marks:
    """What each such name stands for; a name that also stands for something else is none."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for module in modules:
        for node in module.nodes.of(ast.ClassDef):
            for name, value in _members(node):
                found[name].append(value)

    def assigned(name: str) -> Sequence[ast.expr]:
        values = found.get(name.removeprefix("self."), ()) if name.startswith("self.") else ()
        return values if len(values) <= MOST else ()

    return {
        name: values
        for name, values in found.items()
        if all(kind_of(value, assigned) in OF_RANKS for value in values)
    }


def _members(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """The attributes that methods assign, and methods that only return an expression."""
    for part in below(node):
        if isinstance(part, ast.FunctionDef):
            last = part.body[-1]
            if isinstance(last, ast.Return) and last.value is not None:
                yield part.name, last.value
        elif isinstance(part, ast.Assign):
            for target in part.targets:
                if variable(target).startswith("self."):
                    yield variable(target).removeprefix("self."), part.value
