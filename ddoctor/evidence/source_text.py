"""Source that a user wrote."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
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


@lru_cache(maxsize=MOST_TREES)
def nodes(tree: ast.AST) -> Sequence[ast.AST]:
    """All nodes of a tree, the outer ones first; many readers ask for them."""
    return tuple(ast.walk(tree))


def forget() -> None:
    """Forget all trees: large scripts have large ones, and a run may take days."""
    syntax_tree.cache_clear()
    nodes.cache_clear()
