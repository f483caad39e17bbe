"""Branches that each rank takes by the values in its own batch, and that matter to the others.

Such as ``if mask.any(): dist.all_reduce(area)``: ranks whose batch has no mask leave it out. Or
``if loss.item() < 0.1: break``: the others wait for the gradients of a rank that has left the loop.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ddoctor.script.calls import is_collective
from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import own_name
from ddoctor.script.scopes import RANK_TESTS, Block, Call, Scope, Statement
from ddoctor.script.stopping import agrees
from ddoctor.script.training_loops import BACKWARD
from ddoctor.script.values import MOST_STEPS

REDUCES = frozenset(
    {
        *("any", "all", "sum", "mean", "std", "var", "max", "min", "amax", "amin", "norm", "item"),
        *("isnan", "isinf", "isfinite", "nonzero", "count_nonzero"),
    }
)
"""What makes few numbers of a tensor's values. Its shape is often alike on all ranks."""
JOINS = ("join", "Join")
"""The contexts in which ranks may end at different batches."""
ALONE = frozenset(
    {
        *("Exception", "BaseException", "RuntimeError", "OutOfMemoryError", "ValueError"),
        *("KeyError", "IndexError", "LookupError", "OSError", "AssertionError", "TypeError"),
    }
)
"""Errors that one rank may raise alone, for want of memory or by its own batch."""
DEEPEST = 2
"""Functions that are followed from a handler's ``try`` to the backward pass."""


def own_branches(program: Program) -> Iterator[tuple[Call, ast.expr]]:
    """The calls that lead to a collective, each with the test of the branch around it."""
    sites = [call for call in program.calls if _leads_to_one(call, program)]
    for call in sites:
        data = _of_batches(call, program)
        for block in call.around if data and not call.tests_rank else ():
            test = block.test
            if block.kind != "condition" or block.rest or test is None:
                continue
            if _decides(test, call.scope, data) and not _on_both_sides(block, sites):
                yield call, test
                break


def own_skips(program: Program) -> Iterator[tuple[Statement, ast.expr]]:
    """Where a rank leaves a training loop, or a step before its backward pass, with the test."""
    for statement, test, loop in skips(program):
        data = {call.on for call in _passes(statement.scope, loop)} - {""}
        data |= _names(_given(loop)) if isinstance(loop, ast.For) else set()
        # An option that must hold as well may be off.
        parts = _all_of(test)
        if all(_decides(one, statement.scope, data) for one in parts):
            yield statement, test


def skips(program: Program) -> Iterator[tuple[Statement, ast.expr, ast.AST]]:
    """Each of the statements by which a training leaves its loop, or a step, with test and loop."""
    if any(call.method in JOINS and not call.node.args for call in program.calls):
        return
    for statement in program.statements:
        if not isinstance(statement.node, ast.Break | ast.Continue):
            continue
        blocks = [one for one in statement.around if one.kind in ("condition", "loop", *RANK_TESTS)]
        loops = [at for at, block in enumerate(blocks) if block.kind == "loop"]
        loop = blocks[loops[-1]].node if loops else None
        tests = blocks[loops[-1] + 1 :] if loops else []
        if loop is None or loop not in program.training or len(tests) != 1:
            continue
        back = _passes(statement.scope, loop)
        late = any(call.node.lineno < statement.node.lineno for call in back)
        skips_one = isinstance(statement.node, ast.Break) or not late
        if back and skips_one and tests[0].test is not None:
            yield statement, tests[0].test, loop


def _passes(scope: Scope, loop: ast.AST) -> Sequence[Call]:
    """The backward passes of a loop."""
    return [
        call
        for call in scope.calls
        if call.method in BACKWARD and any(block.node is loop for block in call.loops)
    ]


CLOCKS = (
    *("time.time", "time.monotonic", "time.perf_counter", "time.time_ns", "time.process_time"),
    *("datetime.datetime.now", "datetime.datetime.utcnow"),
)


def own_clocks(program: Program) -> Iterator[tuple[Statement, ast.expr]]:
    """Where a rank leaves a loop of the training by its own clock, with the test."""
    loops = program.training | program.epochs
    for statement in program.statements:
        blocks = [one for one in statement.around if one.kind in ("condition", "loop", *RANK_TESTS)]
        if not isinstance(statement.node, ast.Break) or len(blocks) < 2:
            continue
        loop, test = blocks[-2], blocks[-1].test
        scope = statement.scope
        if loop.node in loops and test is not None and _asks_a_clock(test, scope):
            agreed = [call for call in scope.calls if agrees(call.method)]
            if not any({*_names(test)} & {*_names(call.node)} for call in agreed):
                yield statement, test


def _asks_a_clock(test: ast.expr, scope: Scope) -> bool:
    shown = [value for name in _names(test) for value in scope.shown(name)]
    return any(
        isinstance(part, ast.Call) and scope.named(part.func) in CLOCKS
        for one in (test, *(value for value in shown if isinstance(value, ast.BinOp | ast.Compare)))
        for part in ast.walk(one)
    )


def _all_of(test: ast.expr) -> Sequence[ast.expr]:
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def own_catches(program: Program) -> Iterator[tuple[ast.ExceptHandler, Scope]]:
    """Handlers in a training loop after which a rank continues without its backward pass."""
    told: set[ast.ExceptHandler] = set()
    for call in program.calls:
        loops = [block.node for block in call.loops if block.node in program.training]
        for loop in loops[-1:] if loops and _learns(call, program, DEEPEST) else ():
            for node in ast.walk(loop):
                if isinstance(node, ast.Try) and _contains(node.body, call.node):
                    every = [one for one in node.handlers if _goes_on(one) and one not in told]
                    told.update(every)
                    yield from ((one, call.scope) for one in every)


def _learns(call: Call, program: Program, steps: int) -> bool:
    """Whether it is a backward pass, or calls a function of the script that has one."""
    if call.method == BACKWARD[0]:
        return True
    called = program.function(call.node) if steps else None
    return called is not None and any(_learns(one, program, steps - 1) for one in called.calls)


def _contains(body: Sequence[ast.stmt], node: ast.AST) -> bool:
    return any(part is node for one in body for part in ast.walk(one))


def _goes_on(handler: ast.ExceptHandler) -> bool:
    """Whether it catches what one rank may raise alone, and lets the loop continue."""
    names = {own_name(part) for part in ast.walk(handler.type)} if handler.type else ALONE
    if not names & ALONE:
        return False
    parts = [part for one in handler.body for part in ast.walk(one)]
    leaves = any(isinstance(part, ast.Raise | ast.Return | ast.Break) for part in parts)
    return any(isinstance(part, ast.Continue) for part in parts) or not leaves


def _leads_to_one(call: Call, program: Program) -> bool:
    """Whether it is a collective, or calls a function of the script that begins no branch first."""
    if is_collective(call):
        return True
    called = program.function(call.node)
    return called is not None and any(
        is_collective(one) and not {"condition", *RANK_TESTS} & {block.kind for block in one.around}
        for one in called.calls
    )


def _on_both_sides(block: Block, sites: Sequence[Call]) -> bool:
    around = (other for site in sites for other in site.around)
    return len({other.negated for other in around if other.node is block.node}) > 1


def _of_batches(call: Call, program: Program) -> set[str]:
    """The variables that hold a batch: of a training loop, or the arguments of a layer."""
    scope = call.scope
    if scope.owner and scope.name.endswith(".forward") and isinstance(scope.node, ast.FunctionDef):
        return {one.arg for one in scope.node.args.args if one.arg != "self"}
    loops = (one.node for one in call.loops if one.node in program.training)
    return {name for one in loops if isinstance(one, ast.For) for name in _names(_given(one))}


def _given(loop: ast.For) -> ast.expr:
    """What a loop gets of each batch: not the number that ``enumerate`` counts."""
    counted = isinstance(loop.iter, ast.Call) and own_name(loop.iter.func) == "enumerate"
    return loop.target.elts[-1] if counted and isinstance(loop.target, ast.Tuple) else loop.target


def _decides(test: ast.expr, scope: Scope, data: set[str]) -> bool:
    """Whether the values in a batch decide a test, through operations on tensors alone."""
    reached = _reached(test, scope, data)
    names = {name for one in reached for name in _names(one)}
    calls = [part for one in reached for part in ast.walk(one) if isinstance(part, ast.Call)]
    before = (one for one in scope.calls if one.node.lineno < test.lineno)
    if not all(_of_tensors(one, scope) for one in calls) or any(
        agrees(one.method) and names & _names(one.node) for one in before
    ):
        return False
    reductions = (one for one in calls if own_name(one.func) in REDUCES)
    return any(data & _names(part) for one in reductions for part in _reached(one, scope, data))


def _reached(node: ast.expr, scope: Scope, known: set[str]) -> Sequence[ast.expr]:
    """An expression, and what the variables in it are assigned from, but for the known ones."""
    reached, ahead = [node], [node]
    for _ in range(MOST_STEPS):
        names = {name for one in ahead for name in _names(one)} - known
        shown = (value for name in names for value in scope.assigned(name) if value is not None)
        ahead = [value for value in dict.fromkeys(shown) if value not in reached]
        reached += ahead
    return reached


def _of_tensors(call: ast.Call, scope: Scope) -> bool:
    """Whether it is a method of a tensor, or a function that no other rank takes part in."""
    function = call.func
    if not isinstance(function, ast.Attribute):
        return own_name(function) in ("float", "int", "bool", "len", "abs")
    if agrees(own_name(function)) or variable(function.value).partition(".")[0] == "self":
        return False
    name = scope.names.of(function)
    return name.startswith((".", "torch.", "numpy.", "math."))


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
