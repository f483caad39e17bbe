"""Source that a user wrote."""

from __future__ import annotations

import ast
import warnings


def syntax_tree(text: str) -> ast.Module:
    """The syntax tree of a user's source, without Python's warnings of what it says.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it cannot be read.
    """
    with warnings.catch_warnings():
        # Such as of an invalid escape sequence.
        warnings.simplefilter("ignore")
        return ast.parse(text)
