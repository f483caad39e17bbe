"""How a loop of the user's code may end, other than at the end of its data."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

Loop = ast.For | ast.AsyncFor | ast.While
ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
OWN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def decides(loop: Loop) -> bool:
    """Whether a test of something else than a counter may end the loop.

    Ranks that count alike leave alike, and a StopIteration is the end of the data.
    """
    known = counters(loop)
    test = loop.test if isinstance(loop, ast.While) else None
    if test is not None and not (isinstance(test, ast.Constant) or counts(test, known)):
        return True
    return any(_exits(node, known, nested=False) for node in loop.body)


def _exits(node: ast.AST, known: Collection[str], *, nested: bool) -> bool:
    if isinstance(node, ast.Return) or (isinstance(node, ast.Break) and not nested):
        return True
    if isinstance(node, OWN) or (isinstance(node, ast.If) and counts(node.test, known)):
        return False
    caught = node.type if isinstance(node, ast.ExceptHandler) else None
    if caught is not None and "StopIteration" in ast.unparse(caught):
        return False
    inside = nested or isinstance(node, Loop)
    return any(_exits(one, known, nested=inside) for one in ast.iter_child_nodes(node))


def counters(loop: Loop) -> Collection[str]:
    """The source of a loop's counters: its targets, and what it increments."""
    added = (node.target for node in ast.walk(loop) if isinstance(node, ast.AugAssign))
    targets: Iterator[ast.AST] = iter(()) if isinstance(loop, ast.While) else ast.walk(loop.target)
    return {ast.unparse(node) for node in (*added, *targets) if isinstance(node, ast.expr)}


def counts(test: ast.expr, counters: Collection[str]) -> bool:
    """Whether a test compares one of these counters by its order.

    Of several tests, those must not call a function that may answer otherwise on another rank.
    """
    if isinstance(test, ast.BoolOp):
        parts = [(counts(one, counters), _calls(one)) for one in test.values]
        return any(alike for alike, _ in parts) and all(alike or not own for alike, own in parts)
    return any(
        isinstance(part, ast.Compare)
        and isinstance(part.ops[0], ORDER)
        and any(ast.unparse(side) in counters for side in (part.left, *part.comparators))
        for part in ast.walk(test)
    )


def _calls(test: ast.expr) -> bool:
    return any(isinstance(part, ast.Call) for part in ast.walk(test))
