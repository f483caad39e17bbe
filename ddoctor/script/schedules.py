"""Schedules of a learning rate that accelerate prepares, with the batches of one rank as steps.

A loader has the batches of all ranks before it is prepared, and those of one rank afterwards. A
prepared scheduler makes a step for each rank.
"""

# Above 150 lines: a schedule is made in place, by a function, or by a method, and its number of
# steps comes through variables, arguments and attributes.

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddoctor.script.calls import is_accelerator
from ddoctor.script.names import variable, words
from ddoctor.script.program import Program
from ddoctor.script.ranks import own_name
from ddoctor.script.scopes import Call, Scope

MOST_STEPS = 5
"""Variables and functions that are followed from a schedule to the length of its loader."""
OF_ALL = frozenset({"processes", "world", "ranks", "gpus", "devices", "replicas"})
"""Words of the number of ranks: who writes it has counted them."""
OF_TORCH = "torch.optim.lr_scheduler."
PREPARES = ("prepare", "prepare_scheduler")
PROCESSES = "num_processes"


@dataclass(frozen=True)
class Schedule:
    """A schedule, and the expression that counts the batches of one rank."""

    made: Call
    name: str
    """The variable that the loop steps; empty: unknown."""
    counts: ast.expr
    scope: Scope
    """The function of that expression."""


def of_one_rank(program: Program) -> Iterator[Schedule]:
    """The schedules of this kind that accelerate prepares."""
    prepares = [call for call in program.calls if call.method in PREPARES and is_accelerator(call)]
    by_node = {call.node: call for call in program.calls} if prepares else {}
    for prepare in prepares:
        targets = _targets(prepare)
        for place, given in enumerate(prepare.node.args):
            maker = _maker(given, prepare)
            made = by_node.get(maker) if maker is not None else None
            if made is None or not _makes_scheduler(made, program, MOST_STEPS):
                continue
            reading = _Reading(program, made, prepares)
            if counts := reading.counted():
                name = targets[place] if len(targets) == len(prepare.node.args) else ""
                yield Schedule(made, name or variable(given), *counts)


def _targets(call: Call) -> Sequence[str]:
    """The variables that a statement assigns from a call."""
    statement = call.statement
    if not isinstance(statement, ast.Assign) or statement.value is not call.node:
        return ()
    target = statement.targets[0]
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return [variable(part) for part in parts]


def _maker(given: ast.expr, at: Call) -> ast.Call | None:
    """The call that makes an argument: itself, or what its variable is assigned from before."""
    if isinstance(given, ast.Call):
        return given
    before = [
        value
        for value in at.scope.assigned(variable(given))
        if isinstance(value, ast.Call) and value.lineno <= at.node.lineno and value is not at.node
    ]
    return before[-1] if before else None


def _makes_scheduler(call: Call, program: Program, steps: int) -> bool:
    """Whether a call, or the function of the script that it calls, makes a schedule."""
    name = call.name.rpartition(".")[2]
    if any(one.startswith(OF_TORCH) for one in (call.name, *program.bases.get(call.name, ()))):
        return True
    scope = program.called(call)
    if scope is None:
        return name == "get_scheduler" or ("_schedule" in name and name.startswith("get_"))
    inner = {one.node: one for one in scope.calls}
    for result in program.results(scope) if steps else ():
        values = [result, *scope.shown(variable(result))]
        makers = [inner[one] for one in values if isinstance(one, ast.Call) and one in inner]
        if any(_makes_scheduler(one, program, steps - 1) for one in makers):
            return True
    return False


class _Reading:
    """Follows the arguments of a schedule to the length of a prepared loader."""

    def __init__(self, program: Program, made: Call, prepares: Sequence[Call]) -> None:
        self._program = program
        self._made = made
        self._sharded = [(call, name) for call in prepares for name in _targets(call) if name]
        self._counts_all = False
        self._found: tuple[ast.expr, Scope] | None = None

    def counted(self) -> tuple[ast.expr, Scope] | None:
        """The expression, with its function; None: there is none, or all ranks are counted."""
        for one in _given(self._made.node):
            self._expression(one, self._made, MOST_STEPS)
        called = self._program.called(self._made)
        if called is not None:
            self._function(called)
        return None if self._counts_all else self._found

    def _function(self, scope: Scope) -> None:
        """The lengths that the function of a schedule takes itself."""
        variables = [value for values in scope.variables.values() for value in values if value]
        parts = (*variables, *(part for call in scope.calls for part in _given(call.node)))
        multiplied = any(map(_multiplied, parts))
        for one in parts:
            if not multiplied and _divided(one):
                # The number of ranks that the function is given may be for this alone.
                self._counts_all, self._found = False, self._found or (one, scope)
            else:
                self._names_all(one)
                self._lengths(one, scope, 1)

    def _expression(self, value: ast.expr, at: Call, steps: int) -> None:
        """An expression that holds where a call is."""
        if steps < MOST_STEPS and _divided(value):
            # A number that is divided itself may be so once the schedule has it.
            self._found = self._found or (value, at.scope)
            return
        self._names_all(value)
        self._lengths(value, at.scope, steps)
        for part in ast.walk(value) if steps else ():
            if isinstance(part, ast.Name | ast.Attribute):
                self._variable(variable(part), at, steps - 1)

    def _variable(self, name: str, at: Call, steps: int) -> None:
        given = self._program.passed(at.scope).get(name)
        caller = self._program.caller(at.scope)
        if given is not None and caller is not None:
            self._expression(given, caller, steps)
            return
        for value in at.scope.shown(name) if name else ():
            number = not isinstance(value, ast.Call) or _is_number(value)
            # A later value is none of the schedule's.
            if number and value.lineno <= at.node.lineno:
                self._expression(value, at, steps)

    def _names_all(self, value: ast.expr) -> None:
        for part in ast.walk(value):
            if isinstance(part, ast.Name | ast.Attribute) and OF_ALL & words(variable(part)):
                self._counts_all = True

    def _lengths(self, value: ast.expr, scope: Scope, steps: int) -> None:
        for part in ast.walk(value) if self._found is None else ():
            if not isinstance(part, ast.Call) or not _is_length(part):
                continue
            if self._is_sharded(part.args[0], scope, part, steps):
                self._found = value, scope

    def _is_sharded(self, loader: ast.expr, scope: Scope, at: ast.expr, steps: int) -> bool:
        """Whether a loader is prepared before its length is taken."""
        name = variable(loader)
        passed = self._program.passed(scope)
        if name in passed and (caller := self._program.caller(scope)) is not None and steps:
            return self._is_sharded(passed[name], caller.scope, caller.node, steps - 1)
        for call, target in self._sharded:
            if target == name and call.scope is scope:
                return call.node.lineno < at.lineno
        # A method takes the length of what another one has prepared before it makes the schedule.
        return name.startswith("self.") and any(
            target == name
            and call.scope is self._made.scope
            and call.scope.owner == scope.owner
            and call.node.lineno < self._made.node.lineno
            for call, target in self._sharded
        )


def _divided(value: ast.AST) -> bool:
    """Whether the number of ranks is part of what divides."""
    return any(
        isinstance(part, ast.BinOp)
        and isinstance(part.op, ast.Div | ast.FloorDiv)
        and any(own_name(one) == PROCESSES for one in ast.walk(part.right))
        for part in ast.walk(value)
    )


def _multiplied(value: ast.AST) -> bool:
    """Whether it is a factor, and not one of what divides."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div | ast.FloorDiv):
        return _multiplied(value.left)
    factor = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult)
    own = factor and any(own_name(one) == PROCESSES for one in (value.left, value.right))  # type: ignore[attr-defined]
    return own or any(map(_multiplied, ast.iter_child_nodes(value)))


def _is_length(node: ast.Call) -> bool:
    return variable(node.func) == "len" and len(node.args) == 1


def _is_number(node: ast.Call) -> bool:
    """Whether it makes a number of numbers: ``len(…)``, ``math.ceil(…)``, ``max(…)``."""
    name = variable(node.func).rpartition(".")[2]
    return name in ("len", "ceil", "floor", "int", "round", "max", "min")


def _given(node: ast.Call) -> Iterator[ast.expr]:
    yield from node.args
    yield from (word.value for word in node.keywords)
