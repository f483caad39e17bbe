"""Calls of a script as evidence: with their arguments, and what contains them."""

# Above 150 lines: arguments, branches and loops each come through variables and other functions.

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ddoctor.evidence.source_lines import SourceCall, Within
from ddoctor.script.arguments import keywords, made_by, spread
from ddoctor.script.calls import is_collective, is_sharded_model, matters
from ddoctor.script.names import PRINT, source, variable
from ddoctor.script.program import FEWEST, Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.scopes import RANK_TESTS, Block, Call, Scope
from ddoctor.script.source_lines import At, cut
from ddoctor.script.values import origins

MOST_ARGUMENTS = 20
OF_ACCUMULATION = frozenset({"accum", "accumulate", "accumulation", "micro"})
"""Words of a number of micro-steps."""
MOST_ASSIGNED = 3
"""Expressions that a variable is assigned from."""


def is_kept(call: Call, program: Program) -> bool:
    if call.name == PRINT:
        return not program.replaces_print and any(
            one.node in program.training for one in call.loops
        )
    return matters(call) or (_for_one_rank(call, program) and program.reached(call) is not None)


def _for_one_rank(call: Call, program: Program) -> bool:
    guarded = program.guard(call.scope) is not None
    return guarded or any(block.kind == "one-rank" for block in call.around)


def source_call(call: Call, program: Program, at: At) -> SourceCall:
    node = call.node
    given = [
        *((str(number), value) for number, value in enumerate(node.args)),
        *keywords(call, program),
    ][:MOST_ARGUMENTS]
    guard = program.guard(call.scope)
    guards = [guard[0]] if guard is not None else []
    branches = [block for block in call.around if block.kind in RANK_TESTS]
    around = program.around(call)
    outside = len(around) - len(call.around)
    around = (*around[:outside], *guards, *around[outside:])
    tests = [block for block in around if block.kind == "condition" and block.test]
    left = [block for block in around if block.rest and _leaves_the_step(block)]
    branch = at(branches[-1].node, call.scope) if branches else None
    if branch is None and guard is not None:
        branch = at(guard[0].node, guard[1])
    reached = program.reached(call) if _for_one_rank(call, program) else None
    if reached is None and is_collective(call):
        reached = call
    function = node.func
    on = function.value if isinstance(function, ast.Attribute) else function
    return SourceCall(
        name=call.name or (f".{call.method}" if is_sharded_model(call) else ""),
        at=at(node, call.scope),
        arguments=tuple(cut(source(value)) for name, value in given if name.isdigit()),
        keywords={name: cut(source(value)) for name, value in given if not name.isdigit()},
        spread={name: tuple(dict(pairs)) for name, pairs in spread(call, program).items()},
        origins={name: made_by(name, value, call, program) for name, value in given},
        values={name: text for name, value in given if (text := _assigned(value, call, program))},
        on=call.on,
        made_by=origins(on, call.scope) if variable(on) and call.name.startswith(".") else (),
        assigned=_target(call),
        within=tuple(within(around, program)),
        test=cut(_holds(tests[-1], call.scope, program)) if tests else "",
        unless=cut(source(own)) if left and (own := _own_test(left[-1], call, program)) else "",
        branch=branch,
        always=program.always(call),
        for_some_ranks=call.scope in program.of_some_ranks,
        loop=at(call.loops[-1].node, call.scope) if call.loops else None,
        collective=at(reached.node, reached.scope) if reached is not None else None,
        of_script=program.called(call) is not None,
    )


def _assigned(value: ast.expr, call: Call, program: Program) -> str:
    """The source of what a variable is assigned from, with that of the variables in it.

    That of an argument of its function, where there is one call of it; of a call, what its function
    returns.
    """
    scope = call.scope
    name = variable(value)
    shown = scope.shown(name) if name else ()
    parts = [source(one) for one in shown[:MOST_ASSIGNED]]
    for part in ast.walk(shown[0]) if len(shown) == 1 else ():
        inner = scope.shown(part.id) if isinstance(part, ast.Name) else ()
        if len(inner) == 1:
            parts.append(f"{part.id} = {source(inner[0])}")  # type: ignore[attr-defined]
    parts += map(source, _results(shown[0] if len(shown) == 1 else value, program))
    passed = program.passed(scope)
    for part in ast.walk(value) if passed else ():
        if isinstance(part, ast.Name) and part.id in passed:
            given = passed[part.id]
            parts += (f"{part.id} = {source(given)}", *map(source, _results(given, program)))
    return cut("; ".join(parts))


def _results(made: ast.expr, program: Program) -> Sequence[ast.expr]:
    """What a function of the script returns, where it has one such line."""
    called = program.function(made) if isinstance(made, ast.Call) else None
    found = program.results(called) if called is not None else ()
    return found if len(found) == 1 else ()


def _holds(block: Block, scope: Scope, program: Program) -> str:
    """What holds within a branch, or after one that leaves the function.

    Of a variable, what it is assigned from, also by the only call of its function; of a function
    of the script, what it returns.
    """
    test, negated = block.test, _counts(block) if block.rest else block.negated
    if negated:
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, negated = test.operand, not negated
    for _ in range(FEWEST):
        found = program.values(test, scope) if test is not None and variable(test) else ()
        if len(found) != 1 or isinstance(found[0][0], ast.Constant):
            break
        test, scope = found[0]
    results = _results(test, program) if test is not None else ()
    text = source(results[0] if results else test or block.node)
    return f"not ({text})" if negated else text


def _leaves_the_step(block: Block) -> bool:
    return isinstance(block.node, ast.If) and isinstance(
        block.node.body[-1], ast.Continue | ast.Return
    )


def _own_test(block: Block, call: Call, program: Program) -> ast.expr | None:
    """The test of a branch, unless a collective gives it its value on all ranks."""
    if block.test is None:
        return None
    shown = (one for part in ast.walk(block.test) for one in call.scope.shown(variable(part)))
    nodes = {part for one in (block.test, *shown) for part in ast.walk(one)}
    within = (one for one in call.scope.calls if one.node in nodes)
    agreed = any(is_collective(one) or program.reached(one) for one in within)
    return None if agreed else block.test


def _target(call: Call) -> str:
    """The variable that gets the result itself; empty: none does."""
    statement = call.statement
    if isinstance(statement, ast.Assign) and statement.value is call.node:
        return variable(statement.targets[0])
    return ""


def within(around: Sequence[Block], program: Program) -> Iterator[Within]:
    for block in around:
        if block.kind == "loop":
            if block.node in program.training:
                yield "training"
            else:
                yield "epoch" if block.node in program.epochs else "loop"
        elif block.kind != "condition" or not block.rest or _counts(block):
            yield block.kind


def _counts(block: Block) -> bool:
    """Whether it is for one step in a number of steps, such as those of accumulation."""
    ends = isinstance(block.node, ast.If) and isinstance(block.node.body[-1], ast.Break)
    parts = [*ast.walk(block.shown)] if block.shown is not None and not ends else []
    return any(isinstance(one, ast.Mod) for one in parts) or any(
        own_name(side) == "every" or OF_ACCUMULATION & lower(own_name(side))
        for one in parts
        if isinstance(one, ast.Compare)
        for side in ast.walk(one)
    )
