"""Collectives in a loop over a table whose keys come from the data of each rank.

Such as the metrics of the data sets that a rank has met: ranks that met others call more or fewer.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ddoctor.script.calls import is_collective
from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.scopes import Call, Scope

TABLES = ("dict", "defaultdict", "OrderedDict", "Counter")
VIEWS = ("items", "keys", "values", "sorted", "list", "tuple", "enumerate")
OF_DATA = frozenset(
    {
        *("batch", "batches", "sample", "samples", "example", "examples", "row", "rows"),
        *("record", "records", "inputs", "minibatch", "item"),
    }
)
"""Words of variables that hold what a loader gives."""

Stores = Mapping[tuple[object, str], Sequence[tuple[ast.expr, Scope]]]


def over_own_keys(program: Program) -> Iterator[tuple[Call, ast.AST, Scope]]:
    """The collectives, each with the expression that adds a key, and its function."""
    stores: Stores | None = None
    for call in program.calls:
        loop = call.loops[-1].node if call.loops else None
        if not isinstance(loop, ast.For) or not is_collective(call):
            continue
        name, maker = _made(_table(loop.iter), call.scope, program)
        if not name or not _begins_empty(name, maker):
            continue
        stores = stores if stores is not None else _stores(program)
        for key, scope in stores.get((maker.holder(name), name), ()):
            if _of_data(key, scope):
                yield call, key, scope
                break


def _table(iterated: ast.expr) -> str:
    """The variable of ``table.items()``, ``sorted(table)`` and the like."""
    if isinstance(iterated, ast.Call) and own_name(iterated.func) in VIEWS:
        function = iterated.func
        inner = iterated.args[0] if iterated.args else getattr(function, "value", None)
        return _table(inner) if inner is not None else ""
    return variable(iterated)


def _made(name: str, scope: Scope, program: Program) -> tuple[str, Scope]:
    """The variable and its function, also where a function of the script returns the table."""
    values = scope.shown(name) if name else ()
    if len(values) == 1 and isinstance(values[0], ast.Call):
        called = program.function(values[0])
        results = program.objects.returned(called) if called is not None else ()
        if called is not None and len(results) == 1 and (inner := variable(results[0])):
            return inner, called
    return name, scope


def _begins_empty(name: str, scope: Scope) -> bool:
    values = scope.shown(name)
    return bool(values) and all(
        (isinstance(one, ast.Dict) and not one.keys)
        or (isinstance(one, ast.Call) and own_name(one.func) in TABLES and not one.keywords)
        for one in values
    )


def _stores(program: Program) -> Stores:
    """The keys by which tables are written: ``table[key] = …``, ``table[key].append(…)``."""
    found: dict[tuple[object, str], list[tuple[ast.expr, Scope]]] = defaultdict(list)
    for statement in program.statements:
        node, scope = statement.node, statement.scope
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            targets = [getattr(node.value.func, "value", None)]
        for one in targets:
            if isinstance(one, ast.Subscript) and (name := variable(one.value)):
                found[scope.holder(name), name].append((one.slice, scope))
    return found


def _of_data(key: ast.expr, scope: Scope) -> bool:
    """Whether a key is made by the values in a batch."""
    if _reads(key):
        return True
    names = {one.id for one in ast.walk(key) if isinstance(one, ast.Name)}
    values = [value for name in names for value in scope.shown(name)]
    tests = [value.test for value in values if isinstance(value, ast.IfExp)]
    tested = {one.id for test in tests for one in ast.walk(test) if isinstance(one, ast.Name)}
    for loop in ast.walk(scope.node):
        if not isinstance(loop, ast.For | ast.comprehension):
            continue
        targets = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
        of_batch = bool(OF_DATA & lower(variable(loop.iter)))
        if (names & targets and _reads(loop.iter)) or (tested & targets and of_batch):
            return True
    return any(map(_reads, values))


def _reads(node: ast.expr) -> bool:
    """Whether it reads values of a batch by a name, as ``batch["kind"]`` does; not its keys."""
    if isinstance(node, ast.Call) and own_name(node.func) in ("items", "keys"):
        return False
    return any(
        isinstance(part, ast.Subscript)
        and isinstance(part.slice, ast.Constant)
        and isinstance(part.slice.value, str)
        and OF_DATA & lower(variable(part.value))
        for part in ast.walk(node)
    )
