"""Which statements store a loss with its autograd graph, by the source of a training loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ddoctor.blocks import Function
from ddoctor.evidence.source_text import syntax_tree

BACKWARD = ("backward", "manual_backward")
STORES = ("append", "add", "extend", "insert", "appendleft", "put", "update")
# What is read in these ways, or through these functions, has no graph.
WITHOUT_GRAPH = ("detach", "item", "tolist", "numpy", "data", "shape", "dtype")
NUMBERS = ("float", "int", "str", "len", "round", "bool")


def storing(lines: Sequence[str]) -> Sequence[tuple[int, str]]:
    """The number of each such line with the name of its function; none: unreadable, or none."""
    with suppress(SyntaxError, ValueError, RecursionError):
        tree = syntax_tree("\n".join(line.rstrip("\n") for line in lines))
        scopes = [node for node in ast.walk(tree) if isinstance(node, Function)]
        return [
            (line, getattr(scope, "name", "<module>"))
            for scope in (*scopes, tree)
            for line in _in_scope(scope)
        ]
    return ()


def _in_scope(scope: ast.Module | Function) -> Iterator[int]:
    nodes = [*_own(scope)]
    losses = {name for node in nodes if isinstance(node, ast.Call) for name in _passed_back(node)}
    for node in nodes:
        stored = _stored(node)
        if stored is not None and losses & set(_with_graph(stored)):
            yield node.lineno  # type: ignore[attr-defined]


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a scope without those of the functions in it."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, Function):
            yield node
            yield from _own(node)


def _passed_back(call: ast.Call) -> Iterator[str]:
    """The names in ``loss.backward()``, ``scaler.scale(loss).backward()``, ``x.backward(loss)``."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in BACKWARD:
        # Of an accelerator or a scaler, its own name never holds a loss.
        for part in (call.func.value, *call.args):
            yield from (one.id for one in ast.walk(part) if isinstance(one, ast.Name))


def _stored(node: ast.AST) -> ast.expr | None:
    """What a statement stores beyond the step; None: nothing."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return node.value
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Subscript):
            return value
        # total = total + loss
        adds = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)
        if adds and ast.unparse(target) in map(ast.unparse, (value.left, value.right)):  # type: ignore[attr-defined]
            return value
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        if isinstance(function, ast.Attribute) and function.attr in STORES:
            return ast.Tuple(elts=[*node.value.args, *(one.value for one in node.value.keywords)])
    return None


def _with_graph(value: ast.AST) -> Iterator[str]:
    """The names in an expression whose tensors keep their graphs in it."""
    if isinstance(value, ast.Attribute) and value.attr in WITHOUT_GRAPH:
        return
    if (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in NUMBERS
    ):
        return
    if isinstance(value, ast.Name):
        yield value.id
    for part in ast.iter_child_nodes(value):
        yield from _with_graph(part)
