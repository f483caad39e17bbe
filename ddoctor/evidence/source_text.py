"""Source that a user wrote."""

from __future__ import annotations

import ast
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import TypeVar, overload

MOST_TREES = 64
"""A script and the modules that it imports; the launch and the script's own reader both ask."""


@lru_cache(maxsize=MOST_TREES)
def syntax_tree(text: str) -> ast.Module:
    """The syntax tree of a user's source, without Python's warnings of what it says.

    It is shared, so no reader may change it.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it cannot be read.
    """
    with warnings.catch_warnings():
        # Such as of an invalid escape sequence.
        warnings.simplefilter("ignore")
        return ast.parse(text)


PLAIN = frozenset(
    {
        *("ctx", "op", "ops", "id", "attr", "arg", "name", "module", "level", "kind"),
        *("type_comment", "is_async", "conversion", "simple"),
    }
)
"""Fields of nodes that hold a name or an operator, or say whether a name is read or set."""


KEPT = "_ddoctor_children"
NOTHING: Sequence[ast.AST] = ()


class _Fields(dict[type[ast.AST], Sequence[str]]):
    """The fields in which a node of each kind may have others."""

    def __missing__(self, kind: type[ast.AST]) -> Sequence[str]:
        constant = kind is ast.Constant
        self[kind] = () if constant else tuple(one for one in kind._fields if one not in PLAIN)
        return self[kind]


FIELDS = _Fields()


def children(node: ast.AST) -> Sequence[ast.AST]:
    """The nodes right below one, but operators and those that only say how a name is used.

    Half of all nodes say that, and ``ast.iter_child_nodes`` takes three times as long. Several
    readers walk each tree, so a node keeps them.
    """
    known: Sequence[ast.AST] | None = node.__dict__.get(KEPT)
    if known is not None:
        return known
    found: list[ast.AST] = []
    for name in FIELDS[type(node)]:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [one for one in value if isinstance(one, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    node.__dict__[KEPT] = found or NOTHING
    return found


def below(node: ast.AST) -> Sequence[ast.AST]:
    """A node and all nodes below it, the outer ones first, as ``ast.walk`` finds them."""
    found = [node]
    for one in found:
        found += children(one)
    return found


@lru_cache(maxsize=MOST_TREES)
def levels(tree: ast.AST) -> Sequence[Sequence[ast.AST]]:
    """The tree, the nodes right below it, those right below them, and further on."""
    found: list[Sequence[ast.AST]] = []
    level: Sequence[ast.AST] = [tree]
    while level:
        found.append(level)
        level = [one for node in level for one in children(node)]
    return tuple(found)


Kind = TypeVar("Kind", bound=ast.AST)
Other = TypeVar("Other", bound=ast.AST)


class Nodes(tuple[ast.AST, ...]):
    """All nodes of a tree, the outer ones first."""

    @cached_property
    def _places(self) -> Mapping[type[ast.AST], Sequence[int]]:
        found: dict[type[ast.AST], list[int]] = defaultdict(list)
        for place, node in enumerate(self):
            found[type(node)].append(place)
        return found

    @overload
    def of(self, kind: type[Kind], /) -> Sequence[Kind]: ...
    @overload
    def of(self, kind: type[Kind], other: type[Other], /) -> Sequence[Kind | Other]: ...
    @overload
    def of(self, *kinds: type[ast.AST]) -> Sequence[ast.AST]: ...
    def of(self, *kinds: type[ast.AST]) -> Sequence[ast.AST]:
        """Those of these kinds, in the same order; many readers look for a few kinds each."""
        found = [places for kind, places in self._places.items() if issubclass(kind, kinds)]
        return [self[place] for place in sorted(chain.from_iterable(found))]

    @cached_property
    def packages(self) -> frozenset[str]:
        """The packages that these nodes import, without relative imports."""
        names = [one.name for node in self.of(ast.Import) for one in node.names]
        names += [node.module or "" for node in self.of(ast.ImportFrom) if not node.level]
        return frozenset(one.partition(".")[0] for one in names)


@lru_cache(maxsize=MOST_TREES)
def nodes(tree: ast.AST) -> Nodes:
    """All nodes of a tree."""
    return Nodes(chain.from_iterable(levels(tree)))


def forget() -> None:
    """Forget all trees: large scripts have large ones, and a run may take days."""
    syntax_tree.cache_clear()
    levels.cache_clear()
    nodes.cache_clear()
