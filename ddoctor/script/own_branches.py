"""Collectives in a branch that each rank takes by the values in its own batch.

Such as ``if mask.any(): dist.all_reduce(area)``: ranks whose batch has no mask leave it out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ddoctor.script.calls import is_collective
from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import own_name
from ddoctor.script.scopes import RANK_TESTS, Block, Call, Scope
from ddoctor.script.stopping import agrees
from ddoctor.script.values import MOST_STEPS

REDUCES = frozenset(
    {
        *("any", "all", "sum", "mean", "std", "var", "max", "min", "amax", "amin", "norm", "item"),
        *("isnan", "isinf", "isfinite", "nonzero", "count_nonzero"),
    }
)
"""What makes few numbers of a tensor's values. Its shape is often alike on all ranks."""


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
    reached = _reached(test, scope)
    names = {name for one in reached for name in _names(one)}
    calls = [part for one in reached for part in ast.walk(one) if isinstance(part, ast.Call)]
    before = (one for one in scope.calls if one.node.lineno < test.lineno)
    if not all(_of_tensors(one, scope) for one in calls) or any(
        agrees(one.method) and names & _names(one.node) for one in before
    ):
        return False
    reductions = (one for one in calls if own_name(one.func) in REDUCES)
    return any(data & _names(part) for one in reductions for part in _reached(one, scope))


def _reached(node: ast.expr, scope: Scope) -> Sequence[ast.expr]:
    """An expression, and what the variables in it are assigned from."""
    reached, ahead = [node], [node]
    for _ in range(MOST_STEPS):
        names = {name for one in ahead for name in _names(one)}
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
