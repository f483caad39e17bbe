"""Losses over the gathered features of all ranks, through which no gradient flows back."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from ddoctor.script.calls import is_collective
from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.scopes import Call, Scope, Statement, assignments

INTO_A_LIST = "torch.distributed.all_gather"
INTO_A_TENSOR = "torch.distributed.all_gather_into_tensor"
METHODS = ("all_gather", "gather")
"""Of Fabric, of a LightningModule, and of accelerate."""
PRODUCTS = frozenset({"matmul", "mm", "bmm", "einsum", "cdist", "cosine_similarity"})
LOSSES = frozenset({"entropy", "logsumexp", "softmax", "nll", "loss", "criterion", "ce", "bce"})
"""Words of functions that make a loss of similarities."""
CONSTANT = frozenset(
    {
        *("teacher", "momentum", "key", "keys", "target", "targets", "queue", "ema", "label"),
        *("labels", "detached", "frozen", "index", "indices", "ids", "mask", "bank", "memory"),
    }
)
"""Words of what a method compares with on purpose, without a gradient."""


def without_gradients(program: Program) -> Iterator[tuple[Call, Statement]]:
    """Each gathering of features, and the statement that makes similarities of them for a loss.

    None where a rank puts its own features back, with their gradients.
    """
    for call in program.calls:
        tensor, result = _parts(call)
        if tensor is None or not result or _is_still(call, program) or _is_function(call, program):
            continue
        yield from _used(call, call.scope, tensor, result, program)


def _used(
    call: Call, scope: Scope, tensor: ast.expr, result: str, program: Program
) -> Iterator[tuple[Call, Statement]]:
    """By the function that gathers, or by the callers that get the result from it."""
    own = variable(tensor)
    if _is_constant(tensor) or _puts_back(scope, own, result):
        return
    made = flow(scope, {result})
    similar = _similarity(scope, made, program)
    if similar is not None:
        if _makes_a_loss(scope, flow(scope, {*names_in(similar.node)} & made)):
            yield call, similar
        return
    returned = any(made & {*names_in(one.node)} for one in program.returns.get(scope, ()))
    for caller in program.calls_of(scope) if returned and scope.name else ():
        given = caller.node.args[0] if caller.node.args else None
        held = next((name for name, value in _assigned(caller) if value is caller.node), "")
        if given is not None and held and caller.scope is not scope:
            yield from _used(call, caller.scope, given, held, program)


def _parts(call: Call) -> tuple[ast.expr | None, str]:
    """What is gathered, and the variable that gets all of it; None: it is no such call."""
    given = call.node.args
    if call.name in (INTO_A_LIST, INTO_A_TENSOR) and len(given) > 1:
        return given[1], variable(given[0])
    syncs = any(word.arg == "sync_grads" for word in call.node.keywords)
    by_method = call.method in METHODS and not call.name.startswith("torch.") and not syncs
    if by_method and len(given) == 1 and is_collective(call):
        return given[0], next((name for name, _ in _assigned(call)), "")
    return None, ""


def _assigned(call: Call) -> Iterator[tuple[str, ast.expr | None]]:
    yield from assignments(call.statement)


def _is_still(call: Call | Statement, program: Program) -> bool:
    return any(block.kind == "no-grad" for block in program.around(call))


def _is_function(call: Call, program: Program) -> bool:
    """Whether it is part of an operation that defines its own backward pass."""
    methods = program.methods.get(call.scope.owner, ()) if call.scope.owner else ()
    return any(one.name.endswith(".backward") for one in methods)


def _is_constant(tensor: ast.expr) -> bool:
    return any(
        CONSTANT & lower(own_name(part)) or own_name(part) in ("detach", "data")
        for part in ast.walk(tensor)
        if isinstance(part, ast.Name | ast.Attribute)
    )


def _puts_back(scope: Scope, own: str, result: str) -> bool:
    """Whether the function replaces a part of what it gathered, or joins its own tensor to it."""
    for node in ast.walk(scope.node):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(one, ast.Subscript) and variable(one.value) == result for one in targets):
            return True
        if isinstance(node, ast.List | ast.Tuple) and own and {own, result} <= {*names_in(node)}:
            # As in `torch.cat([features, *others])`, and not in what a function returns.
            loads = isinstance(getattr(node, "ctx", None), ast.Load)
            if loads and any(variable(one) == own for one in node.elts) and len(node.elts) > 1:
                return True
    return False


def flow(scope: Scope, names: Collection[str]) -> set[str]:
    """These variables, and those that the function assigns from them."""
    found = set(names)
    for _ in range(len(scope.variables)):
        more = {
            name
            for node in ast.walk(scope.node)
            for name, value in assignments(node)
            if value is not None and name not in found and found & {*names_in(value)}
        }
        if not more:
            break
        found |= more
    return found


def names_in(node: ast.AST) -> Iterator[str]:
    yield from (name for part in ast.walk(node) if (name := variable(part)))


def _similarity(scope: Scope, flow: set[str], program: Program) -> Statement | None:
    """The first statement that multiplies what was gathered, outside of `no_grad()`."""
    for one in program.statements:
        if one.scope is not scope or hasattr(one.node, "body") or _is_still(one, program):
            continue
        for part in ast.walk(one.node):
            product = isinstance(part, ast.BinOp) and isinstance(part.op, ast.MatMult)
            called = isinstance(part, ast.Call) and own_name(part.func) in PRODUCTS
            if (product or called) and flow & {*names_in(part)}:
                return one
    return None


def _makes_a_loss(scope: Scope, flow: set[str]) -> bool:
    return any(
        isinstance(node, ast.Call)
        and bool(LOSSES & lower(own_name(node.func)))
        and any(flow & {*names_in(one)} for one in node.args)
        for node in ast.walk(scope.node)
    )
