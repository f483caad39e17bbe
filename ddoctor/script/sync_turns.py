"""Accumulation whose exchange of gradients is in another turn than the optimizer's step."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.scopes import Block, Call, Scope
from ddoctor.script.values import MOST_STEPS

NO_SYNC = "no_sync"
STEPS = "step"


class Turn(NamedTuple):
    """Where a counter has this remainder: for ``(i + 1) % every == 0`` it is -1."""

    counter: str
    every: str
    remainder: int
    test: ast.expr


def wrong_turns(program: Program) -> Iterator[tuple[Call, Turn, Call, Turn]]:
    """The calls of ``no_sync``, with the turn without it, and the steps, with theirs."""
    for held in program.calls:
        loop = _training_loop(held, program)
        if held.method != NO_SYNC or loop is None:
            continue
        synced = _without(held)
        steps = [
            (call, turn)
            for call in held.scope.calls
            if call.method == STEPS and call.receiver is not None
            if _training_loop(call, program) is loop
            for turn in [_turn_of(call)]
            if turn is not None and _made_by_optimizer(call, program)
        ]
        if synced is None or len(steps) != 1:
            continue
        step, turn = steps[0]
        moved = _moved(turn.counter, loop, synced.test, turn.test)
        alike = synced[:2] == turn[:2]
        if alike and moved is not None and _differ(synced, turn.remainder - moved):
            yield held, synced, step, turn


def _differ(synced: Turn, step: int) -> bool:
    apart = synced.remainder - step
    return bool(apart % int(synced.every) if synced.every.isdigit() else apart)


def _made_by_optimizer(call: Call, program: Program) -> bool:
    made = program.origins(call.receiver, call.scope) if call.receiver is not None else ()
    return any(name.startswith("torch.optim.") and ".lr_scheduler." not in name for name in made)


def _training_loop(call: Call, program: Program) -> ast.AST | None:
    loops = [block.node for block in call.loops if block.node in program.training]
    return loops[-1] if loops else None


def _conditions(call: Call) -> list[Block]:
    """The branches around a call within its innermost loop."""
    at = max((n for n, block in enumerate(call.around) if block.kind == "loop"), default=-1)
    return [block for block in call.around[at + 1 :] if block.kind == "condition"]


def _without(held: Call) -> Turn | None:
    """The turns that do not enter it; None: the source does not show it."""
    for part in ast.walk(held.statement):
        if isinstance(part, ast.IfExp) and held.node in ast.walk(part):
            return _turn(part.test, held.scope, wanted=held.node in [*ast.walk(part.orelse)])
    blocks = _conditions(held)
    if len(blocks) != 1 or blocks[0].test is None:
        return None
    return _turn(blocks[0].test, held.scope, wanted=blocks[0].negated)


def _turn_of(step: Call) -> Turn | None:
    blocks = _conditions(step)
    if len(blocks) != 1 or blocks[0].test is None:
        return None
    return _turn(blocks[0].test, step.scope, wanted=not blocks[0].negated)


def _turn(test: ast.expr, scope: Scope, *, wanted: bool, steps: int = MOST_STEPS) -> Turn | None:
    """The turns in which a test is as ``wanted``, where it compares a remainder."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _turn(test.operand, scope, wanted=not wanted, steps=steps)
    if isinstance(test, ast.Name):
        # A variable may be made of itself, as in ``last = not last``.
        shown = scope.shown(test.id) if steps else ()
        return _turn(shown[0], scope, wanted=wanted, steps=steps - 1) if len(shown) == 1 else None
    if isinstance(test, ast.BoolOp):
        # The last batch of an epoch is one more such turn.
        several = isinstance(test.op, ast.Or) is wanted
        first = test.values[0]
        return _turn(first, scope, wanted=wanted, steps=steps) if several else None
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    equal = {ast.Eq: True, ast.NotEq: False}.get(type(test.ops[0]))
    left = test.left
    if equal is not wanted or not isinstance(left, ast.BinOp) or not isinstance(left.op, ast.Mod):
        return None
    rest, more = _sum(left.left)
    number = _remainder(test.comparators[0], left.right)
    if not (counter := variable(rest)) or number is None:
        return None
    return Turn(counter, ast.unparse(left.right), number - more, test)


def _sum(node: ast.expr) -> tuple[ast.expr, int]:
    """An expression without the number that is added to it, and that number."""
    if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant):
        number = node.right.value
        sign = {ast.Add: 1, ast.Sub: -1}.get(type(node.op))
        if sign is not None and isinstance(number, int):
            return node.left, sign * number
    return node, 0


def _remainder(node: ast.expr, count: ast.expr) -> int | None:
    """A number, or one that is added to the count, whose own remainder is zero."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    rest, more = _sum(node)
    return more if ast.unparse(rest) == ast.unparse(count) else None


def _moved(counter: str, loop: ast.AST, synced: ast.expr, step: ast.expr) -> int | None:
    """What is added to the counter between the two tests; None: another line sets it."""
    moved = 0
    for node in ast.walk(loop):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if node is loop or counter not in [variable(one) for one in targets if one is not None]:
            continue
        one = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)
        if not one or ast.unparse(node.value) != "1":  # type: ignore[attr-defined]
            return None
        moved += synced.lineno < node.lineno < step.lineno  # type: ignore[attr-defined]
        moved -= step.lineno < node.lineno < synced.lineno  # type: ignore[attr-defined]
    return moved
