"""Data that is sorted by length, and of which each rank takes a part in a row.

The last rank then has the longest samples in each step. With `data[rank::world]` it has not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddoctor.script.names import source, variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.scopes import Call, Scope

LENGTHS = re.compile(
    r"\blen\(|\blen\b|length|frames|duration|seconds|tokens|n_?(words|chars)|\bsize", re.IGNORECASE
)
"""What a key to sort by, or what is sorted, says of the length of a sample."""
SORTS = ("sorted", "argsort")
PARTS = ("array_split", "tensor_split", "chunk")
"""Functions that make parts in a row."""
KEEPS = frozenset(
    {"list", "tuple", "array", "asarray", "tensor", "from_numpy", "tolist", "as_tensor"}
)
"""Functions whose result has the same order."""
SHUFFLES = frozenset({"shuffle", "permutation", "randperm", "shuffled"})
MOST_STEPS = 8

Found = tuple[ast.expr, Scope]


def sorted_shares(program: Program) -> Iterator[tuple[Found, Found]]:
    """The parts by rank, each with what sorts the data before."""
    for scope in program.scopes:
        if scope.outer is not None:
            continue
        for node in filter(_may_be_part, scope.module.nodes.of(ast.Subscript)):
            within = program.scope_of(node, scope.module)
            whole = _whole(node, within)
            sort = _sort(whole, within, program, MOST_STEPS) if whole is not None else None
            if sort is not None:
                yield (node, within), sort


def _may_be_part(node: ast.Subscript) -> bool:
    """Whether it is a part in a row, or one of several parts; most are neither."""
    made = node.value
    if isinstance(node.slice, ast.Slice):
        return None not in (node.slice.lower, node.slice.upper) and node.slice.step is None
    return isinstance(made, ast.Call) and own_name(made.func) in PARTS


def _whole(node: ast.Subscript, scope: Scope) -> ast.expr | None:
    """What a rank takes its part in a row of; None: it takes the part of no rank."""
    part = node.slice
    if isinstance(part, ast.Slice):
        low = part.lower
        return node.value if low is not None and _begins_by_rank(low, scope) else None
    made = node.value
    if not isinstance(made, ast.Call) or not _is_rank(part):
        return None
    if (
        isinstance(made.func, ast.Attribute)
        and own_name(made.func) == "chunk"
        and len(made.args) == 1
    ):
        return made.func.value
    return made.args[0] if made.args else None


def _begins_by_rank(low: ast.expr, scope: Scope) -> bool:
    """Whether it is the rank times a size, also by a variable."""
    shown = [low, *(scope.shown(low.id) if isinstance(low, ast.Name) else ())]
    return any(
        isinstance(one, ast.BinOp)
        and isinstance(one.op, ast.Mult)
        and (_is_rank(one.left) or _is_rank(one.right))
        for one in shown
    )


def _is_rank(node: ast.expr) -> bool:
    return "rank" in lower(own_name(node))


def _sort(node: ast.expr, scope: Scope, program: Program, steps: int) -> Found | None:
    """What sorts this data by length; None: nothing, or something shuffles it after that."""
    if not steps:
        return None
    if isinstance(node, ast.Call):
        return _of_call(node, scope, program, steps)
    if isinstance(node, ast.ListComp):
        return _sort(node.elt, scope, program, steps - 1)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        return _sort(node.value, scope, program, steps - 1)
    name = variable(node)
    mine = [call for call in scope.calls if name and _orders(call, name)]
    if any(call.method in SHUFFLES for call in mine):
        return None
    in_place = next((call for call in mine if _by_length(call.node)), None)
    if in_place is not None:
        return in_place.node, scope
    for value, where in program.values(node, scope):
        found = _sort(value, where, program, steps - 1)
        if found is not None:
            return found
    return None


def _orders(call: Call, name: str) -> bool:
    """Whether it sorts or shuffles this variable in place."""
    given = [source(one) for one in call.node.args[:1]]
    return (call.method in SHUFFLES and name in given) or (
        call.method == "sort" and call.on == name
    )


def _of_call(node: ast.Call, scope: Scope, program: Program, steps: int) -> Found | None:
    name = own_name(node.func)
    if name in SORTS:
        return (node, scope) if _by_length(node) else None
    called = program.function(node)
    if called is not None:
        results = program.results(called)
        return _sort(results[0], called, program, steps - 1) if len(results) == 1 else None
    if name not in KEEPS:
        return None
    kept = node.args[0] if node.args else getattr(node.func, "value", None)
    return _sort(kept, scope, program, steps - 1) if kept is not None else None


def _by_length(node: ast.Call) -> bool:
    """Whether a call sorts by length: by its key, or without one by what it sorts."""
    key = next((word.value for word in node.keywords if word.arg == "key"), None)
    if key is not None:
        return LENGTHS.search(source(key)) is not None
    return own_name(node.func) == "argsort" and LENGTHS.search(source(node)) is not None
