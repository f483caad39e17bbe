"""Loops of a training that a rank leaves by what it alone has measured."""

# Above 150 lines: a value reaches a test through variables, objects and methods.

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ddoctor.script.calls import COLLECTIVES
from ddoctor.script.names import CONFIGS, variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower
from ddoctor.script.same import varies
from ddoctor.script.scopes import RANK_TESTS, Call, Scope, Statement
from ddoctor.script.seeding import SEEDS, SEEDS_ALL
from ddoctor.script.values import MOST_STEPS

STOPS = re.compile(r"stop|patien|early|bad_epochs|no_improve|counter|wait", re.IGNORECASE)
"""What tests of an early end are called, and the classes of what they ask."""
DIVERGES = re.compile(r"(?:^|_)kl(?:$|_)", re.IGNORECASE)
"""What the divergence of a policy from the one of the rollouts is called."""
SEEDING = ("manual_seed", "default_rng", *SEEDS_ALL)
AGREES = frozenset(
    {
        *("reduce", "gather", "broadcast", "synchronize", "sync"),
        *(name.rpartition(".")[2] for name in COLLECTIVES if not name.endswith("barrier")),
    }
)
"""Words of what makes a value the same on all ranks."""
OF_METRICS = "compute"
"""What torchmetrics' objects are asked with, for a value of all ranks."""
DEEPEST = 3
"""Functions within each other that make a value."""


@dataclass(frozen=True)
class End:
    """Where a loop of the training ends, the test for it, and the outermost such loop."""

    test: ast.expr
    loop: ast.AST
    direct: bool
    """Whether only this test is between the loop over epochs and its end."""


def own_stops(program: Program) -> Iterator[Statement]:
    """The statements that end the training, whose test nothing makes the same on all ranks."""
    yield from (statement for statement, _ in _own_ends(program, _is_early))


def own_divergences(program: Program) -> Iterator[tuple[ast.expr, Scope]]:
    """The tests by which a rank ends the updates of a policy, of the divergence on its rollouts.

    Without an option in the same test, which may be off. The ranks' rollouts have other seeds.
    """
    if any(_seeds_by_rank(call, program) for call in program.calls):
        for statement, end in _own_ends(program, _diverges):
            if end.direct:
                yield end.test, statement.scope


def _seeds_by_rank(call: Call, program: Program) -> bool:
    given = call.node.args[0] if call.node.args else None
    seeds = call.name in SEEDS or call.method in SEEDING
    return seeds and varies(given, call.scope, program) == "by-rank"


def _diverges(test: ast.expr, scope: Scope, program: Program) -> bool:
    named = any(DIVERGES.search(name.rpartition(".")[2]) for name in _keys(test))
    return named and isinstance(test, ast.Compare)


def _own_ends(
    program: Program, wanted: Callable[[ast.expr, Scope, Program], bool]
) -> Iterator[tuple[Statement, End]]:
    """The statements that end a loop by such a test, which nothing makes the same on all ranks."""
    agreed = [call for call in program.calls if agrees(call.method)]
    for statement in program.statements:
        end = _ended(statement, program)
        if end is None or not wanted(end.test, statement.scope, program):
            continue
        names = _decided_by(end, statement, program)
        for _ in range(MOST_STEPS):
            shown = [value for name in names for value in statement.scope.shown(name)]
            names = names.union(*map(_keys, shown))
        asked = {*ast.walk(end.test)}
        makers = {
            program.called(call)
            for call in program.calls
            if call.node in asked
            or (call.scope is statement.scope and (_keys_on(call) & names or _sets(call, names)))
        }
        makers |= _setters(names, statement.scope, program)
        inner = _inner({one for one in makers if one is not None}, program)
        if any(call.scope in inner or names & _keys(call.node) for call in agreed):
            continue
        if _counts_steps(names, statement, program):
            continue
        if end.direct or _measured(names, inner, statement, program):
            yield statement, end


def _ended(statement: Statement, program: Program) -> End | None:
    """What a statement ends; None: no loop of the training, or without a test."""
    node = statement.node
    ours = program.epochs | program.training
    if isinstance(node, ast.While) and node in program.epochs:
        return End(test=node.test, loop=node, direct=False)
    if not isinstance(node, ast.Break | ast.Return):
        return None
    around = [block for block in statement.around if block.kind in ("condition", "loop")]
    loops = [block.node for block in around if block.kind == "loop"]
    left = loops[-1:] if isinstance(node, ast.Break) else loops
    left = [one for one in left if one in ours]
    test = around[-1].test if around else None
    if not left or test is None:
        return None
    direct = isinstance(node, ast.Break) and around[-2].node in program.epochs
    if not direct and any(block.kind in RANK_TESTS for block in statement.around):
        return None
    return End(test=test, loop=left[0], direct=direct)


def _is_early(test: ast.expr, scope: Scope, program: Program) -> bool:
    """Whether a test, or the class of what it asks, is named as one for an early end."""
    objects = (one for one in ast.walk(test) if isinstance(one, ast.Name | ast.Attribute))
    names = (name for one in objects for name in program.objects.classes(one, scope))
    return any(map(STOPS.search, (ast.unparse(test), *names)))


def _decided_by(end: End, statement: Statement, program: Program) -> set[str]:
    """The variables in a test, and what objects in it such as ``stopper`` get in the loop."""
    parts = _keys(end.test)
    for node in ast.walk(end.loop):
        # A counter goes up by the value that its branch tests.
        if isinstance(node, ast.If) and any(
            parts & _keys(target) for one in (*node.body, *node.orelse) for target in _targets(one)
        ):
            parts = parts | _keys(node.test)
    setters = _setters(parts, statement.scope, program)
    given = {
        name
        for call in program.calls
        if call.scope is statement.scope
        and (_keys_on(call) & parts or program.called(call) in setters)
        for one in (*call.node.args, *(word.value for word in call.node.keywords))
        for name in _keys(one)
    }
    return given | parts


def _setters(names: set[str], scope: Scope, program: Program) -> set[Scope]:
    """The other methods of the same class that assign one of these attributes."""
    own = {name for name in names if name.startswith("self.")}
    return {
        one.scope
        for one in (program.statements if own else ())
        if one.scope.attributes is scope.attributes
        and one.scope is not scope
        and not one.scope.name.endswith("__init__")
        and any(own & _keys(target) for target in _targets(one.node))
    }


def _inner(scopes: set[Scope], program: Program) -> set[Scope]:
    """Functions, and those that they call."""
    found, ahead = set(scopes), scopes
    for _ in range(DEEPEST):
        called = {program.called(call) for scope in ahead for call in scope.calls}
        ahead = {one for one in called if one is not None} - found
        found |= ahead
    return found


def _counts_steps(names: set[str], statement: Statement, program: Program) -> bool:
    """Whether only constants, options and counters of them decide, as in ``step >= args.steps``."""
    scope = statement.scope
    for name in names:
        if CONFIGS & lower(name):
            continue
        values = [
            value
            for one in program.statements
            if one.scope is scope
            and any(name in _keys(target) for target in _targets(one.node))
            and (value := getattr(one.node, "value", None)) is not None
        ]
        parts = [part for value in values for part in ast.walk(value)]
        if not values or any(isinstance(one, ast.Call | ast.Subscript) for one in parts):
            return False
    return True


def _measured(names: set[str], makers: set[Scope], statement: Statement, program: Program) -> bool:
    """Whether an evaluation makes the values: a function without gradients, or a loop here."""
    if any(_evaluates(call) for scope in makers for call in scope.calls):
        return True
    return any(
        any(block.kind == "no-grad" for block in call.around)
        and (_sets(call, names) or (call.method in ("append", "add") and _keys_on(call) & names))
        for call in statement.scope.calls
    )


def _evaluates(call: Call) -> bool:
    return call.method == "eval" or any(block.kind == "no-grad" for block in call.around)


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def _keys(node: ast.AST) -> set[str]:
    """The variables in an expression; of ``self``, its attributes."""
    return {
        variable(one)
        for one in ast.walk(node)
        if (isinstance(one, ast.Name) and one.id != "self")
        or (isinstance(one, ast.Attribute) and variable(one.value) == "self")
    }


def _keys_on(call: Call) -> set[str]:
    """The object that is called, or whose method it is."""
    function = call.node.func
    own = _keys(function)
    return own if not isinstance(function, ast.Attribute) else _keys(function.value) or own


def _sets(call: Call, names: set[str]) -> bool:
    """Whether the result of a call goes into one of these variables."""
    return any(names & _keys(one) for one in _targets(call.statement))


def agrees(method: str) -> bool:
    """Whether a function of this name makes a value the same on all ranks."""
    return method == OF_METRICS or bool(AGREES & {method, *lower(method)})
