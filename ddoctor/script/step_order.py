"""What a training loop does at the wrong place: in each step, too early, never, or not again."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ddoctor.script.names import variable
from ddoctor.script.own_averaging import REDUCE
from ddoctor.script.partial_metrics import evaluations, may_be_loader
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower, own_name
from ddoctor.script.scopes import Block, Call, Scope, assignments
from ddoctor.script.stale_optimizers import makes_optimizer, trained_names
from ddoctor.script.training_loops import BACKWARD, OTHER_STEPS

HOOKS = frozenset(
    f"register_{one}"
    for one in (
        *("forward_hook", "forward_pre_hook"),
        *("backward_hook", "full_backward_hook", "full_backward_pre_hook"),
    )
)
"""Methods of a module that add a hook to it."""
ZEROES, STEPS = "zero_grad", "step"
RESTORES = frozenset({"load_state_dict", "deepcopy"})
"""Calls by which a loop may begin with other weights each time."""
WITHOUT_STATE = "SGD"
OTHERWISE = frozenset({ZEROES, "grad", "functional_call", "zero_", "deepspeed"})
"""Names by which gradients are zeroed, or made in another way."""
DIFFERS = ("dropout", "batchnorm", "transformerencoderlayer", "torchvision.models.")
"""Layers that compute something else in evaluation mode, as parts of the name of a call."""
LOADED = "from_pretrained"
"""Such a model may have these layers, and begins in evaluation mode."""
MOST_STEPS = 4
"""Variables and functions that are followed from a model to its optimizer."""
IN_THE_WAY = frozenset({"loop", "condition", "one-rank", "other-ranks", "some-ranks"})


def made_in_each_step(program: Program) -> Iterator[Call]:
    """Optimizers with a state that a training loop makes in each turn, and steps there."""
    for call in filter(makes_optimizer, program.calls):
        loop = in_each_turn(call, program)
        if loop is None or not _has_state(call) or _names_made(loop) & _names(call.node):
            continue
        name = _assigned(call.statement)
        steps = (
            one
            for one in program.calls
            if one.method == STEPS and one.on == name and in_each_turn(one, program) is loop
        )
        if name and next(steps, None) and not _calls(call.scope, loop) & RESTORES:
            yield call


def hooks_of_each_step(program: Program) -> Iterator[Call]:
    """Calls that add hooks to a module again and again in a training, where none is removed."""
    if any(call.method == "remove" for call in program.calls):
        return
    for call in program.calls:
        loop = in_each_turn(call, program, inner=True) if call.method in HOOKS else None
        if loop is None and call.method in HOOKS:
            loop = _now_and_then(call, program)
        if loop is not None and variable(_root(call.node)) not in _names_made(loop, items=False):
            yield call


def zeroed_before_the_step(program: Program) -> Iterator[tuple[Call, Call]]:
    """The zeroing of gradients that a backward pass has just made, and the step after it."""
    for scope in program.scopes:
        calls = [call for call in scope.calls if in_each_turn(call, program) is not None]
        backwards = [call for call in calls if call.method in BACKWARD]
        for zero, step in pairwise(one for one in calls if one.method in (ZEROES, STEPS)):
            if zero.method != ZEROES or step.method != STEPS or not zero.on or zero.on != step.on:
                continue
            between = [one for one in scope.calls if zero.node.lineno < _line(one) < _line(step)]
            makes = any(one.method in BACKWARD or program.called(one) for one in between)
            made = any(_line(one) < _line(zero) for one in backwards)
            if made and not makes and not step.node.args and not step.node.keywords:
                yield zero, step


def never_zeroed(program: Program) -> Call | None:
    """The step of an optimizer whose gradients no line of the script zeroes; None: there is none.

    Only of torch's own optimizers, and where nothing else may zero gradients.
    """
    names = {call.method for call in program.calls} | {
        node.attr
        for module in {scope.module for scope in program.scopes}
        for node in module.nodes.of(ast.Attribute)
    }
    if OTHERWISE & names or any(call.name.startswith("deepspeed.") for call in program.calls):
        return None
    for call in program.calls:
        steps = call.method == STEPS and not OTHER_STEPS & lower(call.on)
        if not steps or call.receiver is None or in_each_turn(call, program) is None:
            continue
        made = program.origins(call.receiver, call.scope)
        if any(name.startswith("torch.optim.") for name in made):
            return call
    return None


def never_synced(program: Program) -> Call | None:
    """A backward pass of the training, where each of them is in ``no_sync()``; None: one is not.

    Nothing where something else may sum the gradients.
    """
    passes = [call for call in program.calls if call.method in BACKWARD and _loops(call, program)]
    if any(call.name == REDUCE for call in program.calls):
        return None
    return passes[0] if passes and all(map(_in_no_sync, passes)) else None


def _in_no_sync(call: Call) -> bool:
    """Whether nothing but ``no_sync()`` is around it within its loop, in each of its turns."""
    at = max((n for n, block in enumerate(call.around) if block.kind == "loop"), default=-1)
    within = call.around[at + 1 :]
    contexts = (
        item.context_expr
        for block in within
        if isinstance(block.node, ast.With)
        for item in block.node.items
    )
    always = all(block.kind in ("no-sync", "no-grad") for block in within)
    return always and any(
        isinstance(one, ast.Call) and own_name(one.func) == "no_sync" for one in contexts
    )


def left_in_evaluation(program: Program) -> Iterator[Call]:
    """Calls of ``eval()`` in a loop over epochs, or in a training loop, that never ends again.

    Only of models that an optimizer trains, and that have layers for which it matters.
    """
    if not _has(program, *DIFFERS, LOADED):
        return
    trains = [call for call in program.calls if call.method == "train"]
    if any(_loops(call, program) or _unknown(call, program) for call in trains):
        return
    for call in program.calls:
        ends = call.method == "eval" and call.on and not call.node.args and _loops(call, program)
        if ends and is_trained(call.on, call.scope, program, MOST_STEPS):
            yield call


def evaluated_in_training_mode(program: Program) -> Iterator[Call]:
    """The passes of a trained model over a loader, without gradients and in training mode.

    Nothing, unless no line of the script asks for another mode.
    """
    if not _has(program, *DIFFERS) or any(map(_asks_for_a_mode, program.calls)):
        return
    for scope in program.scopes:
        loops = [one for one in evaluations(scope, program) if may_be_loader(one, scope, program)]
        for call in scope.calls if loops else ():
            name, inside = variable(call.node.func), {block.node for block in call.around}
            if name and inside & {*loops} and is_trained(name, scope, program, MOST_STEPS):
                yield call


def _has(program: Program, *parts: str) -> bool:
    """Whether the name of any call has one of these parts."""
    named = " ".join(call.name or call.method for call in program.calls).lower()
    return any(one in named for one in parts)


def _asks_for_a_mode(call: Call) -> bool:
    """Whether it is ``eval()``, or ``train(mode)``."""
    given = [*call.node.args, *call.node.keywords]
    return call.receiver is not None and (
        call.method == "eval" or (call.method == "train" and bool(given))
    )


def in_each_turn(call: Call, program: Program, *, inner: bool = False) -> ast.AST | None:
    """The training loop that makes a call in each turn; None: none does.

    ``inner``: loops within it do not matter.
    """
    for block in reversed(program.around(call)):
        if block.node in program.training:
            return block.node
        if block.kind in IN_THE_WAY and not (inner and block.kind == "loop"):
            return None
    return None


def _now_and_then(call: Call, program: Program) -> ast.AST | None:
    """The training loop that makes a call in each Nth turn; None: none does."""
    around = program.around(call)
    loops = [at for at, block in enumerate(around) if block.node in program.training]
    inner = around[loops[-1] + 1 :] if loops else ()
    counted = any(
        isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)
        for block in inner
        if block.kind == "condition" and block.test is not None
        for part in ast.walk(block.test)
    )
    return around[loops[-1]].node if counted else None


def _loops(call: Call, program: Program) -> Sequence[Block]:
    trains = program.training | program.epochs
    return [block for block in program.around(call) if block.node in trains]


def _unknown(call: Call, program: Program) -> bool:
    """Whether it is in a function that the training may call, or not."""
    scope = call.scope
    return bool(scope.name) and not any(
        one.scope is scope and one.node in program.epochs | program.training
        for one in program.statements
    )


def is_trained(name: str, scope: Scope, program: Program, steps: int) -> bool:
    """Whether an optimizer has the parameters of the model, or of what it wraps."""
    name = name.removesuffix(".module")
    for call in filter(makes_optimizer, program.calls):
        trained = {one.removesuffix(".module") for one in trained_names(call)}
        if name in trained and call.scope.holder(name) == scope.holder(name):
            return True
    given, caller = program.passed(scope).get(name), program.caller(scope)
    if steps and given is not None and caller is not None and variable(given):
        return is_trained(variable(given), caller.scope, program, steps - 1)
    wraps = (one for one in scope.assigned(name) if isinstance(one, ast.Call) and one.args)
    return bool(steps) and any(
        is_trained(variable(one.args[0]), scope, program, steps - 1)
        for one in wraps
        if variable(one.args[0]) not in ("", name)
    )


def _has_state(optimizer: Call) -> bool:
    """Whether it keeps something of past gradients: plain SGD does not."""
    return optimizer.method != WITHOUT_STATE or any(
        word.arg in ("momentum", None) for word in optimizer.node.keywords
    )


def _names_made(loop: ast.AST, *, items: bool = True) -> set[str]:
    """The variables that a loop assigns, also those of loops over ``items``."""
    made = (
        name
        for node in ast.walk(loop)
        if items or not isinstance(node, ast.For | ast.comprehension)
        for name, _ in assignments(node)
    )
    return {*made}


def _names(node: ast.AST) -> set[str]:
    return {name for part in ast.walk(node) if (name := variable(part))}


def _calls(scope: Scope, loop: ast.AST) -> set[str]:
    inside = {*ast.walk(loop)}
    return {call.method for call in scope.calls if call.node in inside}


def _assigned(statement: ast.stmt) -> str:
    one = isinstance(statement, ast.Assign) and len(statement.targets) == 1
    return variable(statement.targets[0]) if one else ""  # type: ignore[attr-defined]


def _root(call: ast.Call) -> ast.AST:
    """The object whose method is called."""
    return call.func.value if isinstance(call.func, ast.Attribute) else call.func


def _line(call: Call) -> int:
    return call.node.lineno
