"""Source that a user wrote."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain

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


def children(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes right below one, but those that only say whether a name is read or set.

    A third of all nodes say that, and ``ast.iter_child_nodes`` takes twice as long.
    """
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            for one in value:
                if isinstance(one, ast.AST):
                    yield one
        elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
            yield value


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


@lru_cache(maxsize=MOST_TREES)
def nodes(tree: ast.AST) -> Sequence[ast.AST]:
    """All nodes of a tree, the outer ones first; many readers ask for them."""
    return tuple(chain.from_iterable(levels(tree)))


def forget() -> None:
    """Forget all trees: large scripts have large ones, and a run may take days."""
    syntax_tree.cache_clear()
    levels.cache_clear()
    nodes.cache_clear()
