"""Source that a user wrote."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache

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


@lru_cache(maxsize=MOST_TREES)
def nodes(tree: ast.AST) -> Sequence[ast.AST]:
    """All nodes of a tree, the outer ones first; many readers ask for them."""
    found = [tree]
    for node in found:
        found += children(node)
    return tuple(found)


def forget() -> None:
    """Forget all trees: large scripts have large ones, and a run may take days."""
    syntax_tree.cache_clear()
    nodes.cache_clear()
