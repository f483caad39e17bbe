"""Sums of all ranks that are divided by the count of one of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ddoctor.evidence.source_text import children
from ddoctor.script.names import variable
from ddoctor.script.partial_metrics import HARMLESS, REPORTS
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.scopes import Call, Scope

ADDS = "torch.distributed.all_reduce"
OTHER_RESULTS = frozenset({"avg", "max", "min"})
"""Words of operations that add nothing up."""
OF_ALL = frozenset({"world", "ranks", "replicas", "processes", "nproc", "gpus", "ngpus"})
"""Words of the number of ranks."""
SAME = ("max", "float", "int")
"""Functions by which a count stays what it is, such as ``max(1, total)``."""


@dataclass(frozen=True)
class LocalCount:
    """A division, and the call that adds up what it divides."""

    division: ast.BinOp
    reduced: Call
    scope: Scope


def local_counts(program: Program) -> Iterator[LocalCount]:
    """The divisions by a count of a loop over batches that no rank gets from another one."""
    for reduced in program.by_name.get(ADDS, ()):
        name = variable(reduced.node.args[0]) if reduced.node.args else ""
        given = (*reduced.node.args[1:], *(word.value for word in reduced.node.keywords))
        adds = not any(OTHER_RESULTS & lower(variable(one)) for one in given)
        if name and adds and not reduced.loops:
            yield from _divided(name, reduced)


def _divided(name: str, reduced: Call) -> Iterator[LocalCount]:
    scope = reduced.scope
    nodes = [*ast.walk(scope.node)]
    if any(OF_ALL & lower(_last(one)) for one in nodes):
        return  # something may divide by the number of ranks
    counts = _counts(nodes, reduced) - _passed(scope) - {""}
    for node in nodes:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
            continue
        after = node.lineno > reduced.node.lineno
        if after and _only(node.right) in counts and name in _names(node.left):
            yield LocalCount(node, reduced, scope)
            return


def _counts(nodes: list[ast.AST], reduced: Call) -> set[str]:
    """The variables that a loop before the reduction counts up."""
    return {
        variable(part.target)
        for loop in nodes
        if isinstance(loop, ast.For) and (loop.end_lineno or 0) < reduced.node.lineno
        for part in ast.walk(loop)
        if isinstance(part, ast.AugAssign) and isinstance(part.op, ast.Add)
    }


def _passed(scope: Scope) -> set[str]:
    """The variables that a call gets which may add them up, and those that these are made of."""
    found: set[str] = set()
    for call in scope.calls:
        if call.method not in HARMLESS | REPORTS:
            for given in (*call.node.args, *(word.value for word in call.node.keywords)):
                found |= _names(given)
    for name, values in scope.variables.items():
        for value in values:
            # Such as `both = torch.stack([right, seen])`, and `right, seen = both.tolist()`.
            if value is not None and name in found:
                found |= _names(value)
            elif value is not None and found & _names(value):
                found.add(name)
    return found


def _only(node: ast.expr) -> str:
    """The one variable that an expression stands for."""
    while isinstance(node, ast.Call) and own_name(node.func) in SAME and node.args:
        node = next((one for one in node.args if not isinstance(one, ast.Constant)), node.args[0])
    return variable(node)


def _names(node: ast.AST) -> set[str]:
    """The variables of an expression, without those of options such as ``device=``."""
    found = [node]
    for one in found:
        found += [] if isinstance(one, ast.keyword) else children(one)
    return {one.id for one in found if isinstance(one, ast.Name)}


def _last(node: ast.AST) -> str:
    return str(getattr(node, "attr", None) or getattr(node, "id", ""))
